//! Compiles what Rust cannot express: initial-exec thread-local storage, variadic functions (clone), and what threads
//! are cancelled in.

const FILES: [&str; 4] = ["src/tls.c", "src/clone.c", "src/descriptors.c", "src/streams.c"];

fn main() {
    for file in FILES.into_iter().chain(["src/thread.h", "start/call.h", "start/guest.h", "start/filter.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .files(FILES)
        .flag("-std=gnu11")
        .flag("-ftls-model=initial-exec")
        .flag("-fvisibility=hidden")
        .flag("-fno-builtin")
        .flag("-Werror")
        .opt_level(2)
        .compile("ramfold_shim");
    // Our own calls to what we export stay inside the library, whatever is preloaded before it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // The unwinder inside the library: loading libgcc_s would cost every process of a build 0.1 ms.
    println!("cargo:rustc-link-lib=gcc_eh");
}
