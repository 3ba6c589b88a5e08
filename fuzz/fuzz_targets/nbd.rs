//! The NBD server, on what clients send.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::nbd::nbd(data));
