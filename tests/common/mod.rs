//! What tests share: random elements, and the reference that says what a collective must yield, bit
//! for bit.
#![allow(dead_code, unreachable_pub)]

pub mod apart;
pub mod element;
pub mod events;
pub mod expression;
pub mod left;
pub mod network;
pub mod nodes;
pub mod on_streams;
pub mod reference;
pub mod run;
pub mod turns;
pub mod typed;

/// SplitMix64: small, and the same everywhere.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A seed that differs from run to run and is printed, so that a failure can be repeated
/// (`OXCCL_TEST_SEED`).
pub fn seed() -> u64 {
    let given = std::env::var("OXCCL_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    });
    println!("OXCCL_TEST_SEED={seed}");
    seed
}
