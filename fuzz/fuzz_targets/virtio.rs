//! The requests of virtual machines, on what guests put into their memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ramfold_fuzz::virtio::virtio(data));
