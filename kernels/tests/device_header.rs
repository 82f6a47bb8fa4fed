//! The header of user kernels, `oxccl/device.h`: nvcc takes it without a warning, and what it waits
//! and signals by is as strong as it has to be.
#![allow(clippy::unwrap_used)]

use oxccl_kernels::image::NVCC;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A switch's sums, which nothing runs without a GPU.
const SUM: &str = r#"
#include <oxccl/device.h>

struct Arguments {
  oxccl::device::Communicator comm;
  float4* all;
};

extern "C" __global__ void sum(const __grid_constant__ Arguments arguments) {
  oxccl::device::Block block(arguments.comm, blockIdx.x);
  float4* everywhere = block.everywhere(arguments.all);
  if (everywhere == nullptr || !block.barrier()) return;
#ifdef OXCCL_DEVICE_HAS_SWITCH
  oxccl::device::fence_of_names();
  const uint32_t at = block.rank() * blockDim.x + threadIdx.x;
  oxccl::device::store_everywhere(everywhere + at, oxccl::device::load_sum(everywhere + at));
  oxccl::device::fence_of_names();
#endif
  block.barrier();
}
"#;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The PTX of a source for a compute capability; none without nvcc.
fn ptx(source: &Path, capability: u32) -> Option<String> {
    let nvcc = NVCC?;
    let name = source.file_stem().unwrap().to_str().unwrap();
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{capability}.ptx"));
    let output = Command::new(nvcc)
        .args(["-std=c++17", "-Werror", "all-warnings", "-ptx", "-o"])
        .arg(&out)
        .arg(format!("-arch=sm_{capability}"))
        .arg("-I")
        .arg(root().join("kernels/include"))
        .arg(source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(std::fs::read_to_string(out).unwrap())
}

fn written(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// What the documents show of it.
fn shown() -> String {
    let page = std::fs::read_to_string(root().join("docs/gpu.md")).unwrap();
    let block = page.split("```cpp").nth(1).and_then(|behind| behind.split("```").next());
    block.unwrap().to_owned()
}

#[test]
fn nvcc_takes_kernels_over_it() {
    let guest = |name| root().join("tests/cuda_stand_in/emulator/guests").join(name);
    let [everything, gradients] = ["everything.cu", "gradients.cu"].map(guest);
    let example = |name| root().join("examples/device").join(name);
    let [matmul, overlap] = ["matmul_reduce_scatter.cu", "overlap.cu"].map(example);
    let (sum, shown) = (written("sum.cu", SUM), written("shown.cu", &shown()));
    for source in [everything, gradients, matmul, overlap, sum, shown] {
        for capability in [80, 90] {
            let Some(ptx) = ptx(&source, capability) else {
                eprintln!("skipped: built without nvcc");
                return;
            };
            // Notices acquire and release at system scope, as peers are other GPUs.
            assert!(ptx.contains("st.release.sys.u64"), "{}", source.display());
            assert!(ptx.contains("ld.acquire.sys.u64"), "{}", source.display());
            let has_switch = ptx.contains("multimem.ld_reduce") && ptx.contains("multimem.st");
            let wants_switch = source.ends_with("sum.cu") && capability >= 90;
            assert_eq!(has_switch, wants_switch, "{} for {capability}", source.display());
        }
    }
}

#[test]
fn its_text_can_be_had_at_run_time() {
    let file = std::fs::read_to_string(root().join("kernels/include/oxccl/device.h")).unwrap();
    assert_eq!(oxccl_kernels::DEVICE_HEADER, file);
}
