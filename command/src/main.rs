//! The `oxccl` command.

fn main() -> std::process::ExitCode {
    oxccl_command::main()
}
