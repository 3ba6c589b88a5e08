//! Every codec's `decompress`, on bytes that no codec made.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::decompress(data));
