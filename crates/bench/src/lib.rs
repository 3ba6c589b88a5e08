//! Workloads and comparisons with peers.
