//! Names the library as programs that were linked against NVIDIA's ask for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2");
    // What is preloaded into programs is small: without it, 50 MB of line tables.
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "release") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-s");
    }
}
