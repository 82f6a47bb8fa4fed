# The commands a user needs. Each sets up what is missing first; doing so twice does no work again.
.PHONY: help bench test test-all bench-peers gpu-bundle gpu-report sanitize aarch64 loom lint doc

help:
	@echo "make bench        an AllReduce sweep over 2 local ranks, checked, as a table"
	@echo "make test         the tests, in about 24 minutes on two cores, without the build"
	@echo "make test-all     what is long as well"
	@echo "make bench-peers  the same sweeps beside Open MPI, MPICH, Intel MPI and Gloo, as one table"
	@echo "make gpu-bundle   target/gpu-bundle: probes, tests and benches for a bare machine with a GPU"
	@echo "make gpu-report   the GPUs' part of docs/results.md, of the newest results"
	@echo "make sanitize     the executor under ThreadSanitizer and AddressSanitizer"
	@echo "make aarch64      the host executor's tests under qemu-user, cross-compiled"
	@echo "make loom         model-checks what threads share"
	@echo "make lint         format and clippy, warnings denied"
	@echo "make doc          the API documentation, warnings denied"

bench:
	@tools/setup
	cargo run --release -- bench all_reduce --ranks 2

test:
	@tools/setup
	@tools/setup-python
	@tools/test

test-all:
	@tools/setup
	@tools/setup-python
	@OXCCL_TEST_ALL=1 tools/test

bench-peers:
	@tools/bench-peers

gpu-bundle gpu-report:
	@tools/$@

sanitize:
	@tools/setup
	@tools/sanitize

aarch64 loom lint doc:
	@tools/setup
	@tools/$@
