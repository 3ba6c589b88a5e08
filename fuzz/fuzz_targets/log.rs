//! The log of a disk's image.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::log::log(data));
