//! Workloads and comparisons with peers.

pub mod cgroup;
pub mod comparison;
pub mod histogram;
pub mod kernel_swap;
pub mod measure;
pub mod pages;
pub mod random;
pub mod redis;
pub mod suite;
pub mod touch;
