// SPDX-License-Identifier: Apache-2.0
//! Finds the shared library libflashjit by pkg-config, below FLASHJIT_PREFIX where that is set.

use std::env;
use std::fs;
use std::process::{self, Command};

fn main() {
    println!("cargo:rerun-if-env-changed=FLASHJIT_PREFIX");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let libraries = directory("libdir");
    println!("cargo:rustc-link-search=native={libraries}");
    println!("cargo:rustc-link-lib=dylib=flashjit");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{libraries}");
    println!("cargo:rustc-env=FLASHJIT_INCLUDE={}", directory("includedir")); // for the test of layouts
}

/// What pkg-config calls by this name of the installed package.
fn directory(variable: &str) -> String {
    let mut command = Command::new("pkg-config");
    command.args(["--print-errors", &format!("--variable={variable}"), "flashjit"]);
    if let Some(prefix) = prefix() {
        command.env("PKG_CONFIG_PATH", format!("{prefix}/lib/pkgconfig:{prefix}/lib64/pkgconfig"));
    }
    match command.output() {
        Ok(found) if found.status.success() => String::from_utf8_lossy(&found.stdout).trim().to_owned(),
        Ok(found) => give_up(&String::from_utf8_lossy(&found.stderr)),
        Err(error) => give_up(&format!("pkg-config: {error}")),
    }
}

/// FLASHJIT_PREFIX from the root, as the loader has to find it from any folder.
fn prefix() -> Option<String> {
    let given = env::var("FLASHJIT_PREFIX").ok().filter(|given| !given.is_empty())?;
    match fs::canonicalize(&given) {
        Ok(path) => Some(path.display().to_string()),
        Err(error) => give_up(&format!("FLASHJIT_PREFIX: {given}: {error}")),
    }
}

fn give_up(why: &str) -> ! {
    eprintln!("{why}\nFLASHJIT_PREFIX must be where flashjit is installed, or pkg-config must find flashjit.pc.");
    process::exit(1);
}
