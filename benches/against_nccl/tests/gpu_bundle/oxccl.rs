//! The `oxccl` command, as the bundle has it.

fn main() -> std::process::ExitCode {
    oxccl_command::main()
}
