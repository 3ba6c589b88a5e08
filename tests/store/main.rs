//! The store as a whole, over the real codecs and zpools, with doubles that fail on demand.

mod doubles;
mod faults;
mod metadata;
mod model;
mod rules;
mod stress;
