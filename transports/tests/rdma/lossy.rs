//! The wire over a network that loses and delays packets: the adapters repeat what is lost.

use oxccl_transports::proxy::Conditions;

use super::links::{exchange, pair};
use super::wire::fabric;

#[test]
#[ignore = "runs in the software RoCE guest"]
fn what_is_lost_is_repeated() {
    exchange(&pair(fabric(2), Conditions::default()), 10);
}
