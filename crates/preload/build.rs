//! Links the library so that it asks for nothing but `libc.so.6`, and can be loaded by musl too.
//!
//! musl takes that name for itself, but it knows neither glibc's loader nor where libgcc_s is, and
//! a program that cannot load a preloaded library does not start at all. So the unwinder, which
//! only a panic would use, is linked statically, and what libc or the loader defines is left to be
//! found in either.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // A script with a library's name, in a directory that is searched first, stands for that
    // library.
    let unwinder = [tool_file("libgcc_eh.a"), tool_file("libgcc.a")];
    script(&out.join("libgcc_s.so"), &format!("GROUP ( {} )\n", unwinder.join(" ")));
    script(&out.join("libc.so"), &format!("INPUT ( {} )\n", tool_file("libc.so.6")));
    println!("cargo::rustc-link-search=native={}", out.display());
    // What is ours is called by ours: a program that exports `sigaction` itself, and calls the next
    // library's from there, would be called back for ever.
    println!("cargo::rustc-link-arg-cdylib=-Wl,-Bsymbolic");
    // The unwinder asks glibc's loader where tables lie. What is ours and fails makes it ask
    // `dl_iterate_phdr` instead.
    println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym=_dl_find_object=holdfast_find_no_object");
    // What older versions of glibc have elsewhere, or not at all (older.rs).
    for (name, ours) in [
        ("pthread_key_create", "holdfast_key_create"),
        ("__pthread_key_create", "holdfast_key_create"),
        ("pthread_key_delete", "holdfast_key_delete"),
        ("pthread_setspecific", "holdfast_set_specific"),
        ("pthread_once", "holdfast_once"),
        ("__cxa_thread_atexit_impl", "holdfast_thread_atexit"),
        ("gettid", "holdfast_gettid"),
    ] {
        println!("cargo::rustc-link-arg-cdylib=-Wl,--defsym={name}={ours}");
    }
}

/// Where the C compiler has a file.
fn tool_file(name: &str) -> String {
    let output = Command::new("cc").arg(format!("-print-file-name={name}")).output();
    let output = output.expect("a C compiler (cc) is installed: apt-get install gcc");
    let path = String::from_utf8(output.stdout).expect("a path").trim().to_owned();
    assert!(Path::new(&path).is_absolute(), "cc has no {name}: apt-get install gcc libc6-dev");
    path
}

fn script(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
