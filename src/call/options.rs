//! What single calls ask for beside what their communicator is set to.

use crate::error::Error;
use oxccl_plans::algorithms::{Algorithm, Encoding};
use oxccl_plans::collective::Order;
use std::time::Duration;

/// What calls ask for beside what their communicator is set to. All ranks say the same, but for the
/// time-out, which is each rank's own. `None` leaves it to the communicator's
/// [`Config::order`](crate::Config::order), [`Config::pin`](crate::Config::pin) and
/// [`Config::timeout`](crate::Config::timeout).
///
/// See [`Communicator::with_options`](crate::Communicator::with_options) and
/// [`OnStream::with_options`](crate::OnStream::with_options).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallOptions {
    /// The promised order of reduction.
    pub order: Option<Order>,
    /// The algorithm.
    pub algorithm: Option<Algorithm>,
    /// The encoding.
    pub encoding: Option<Encoding>,
    /// Most channels: on a GPU thread blocks, so that other kernels have room beside them.
    pub channels: Option<usize>,
    /// How long this rank waits in the call without progress; with [`Duration::MAX`], without end.
    /// One that passes ends the communicator, as the communicator's own does. Replays of a call
    /// that was captured have the communicator's.
    pub timeout: Option<Duration>,
}

/// What calls ask for, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// What all ranks say alike.
    pub(crate) options: Options,
    /// This rank's own time-out.
    pub(crate) timeout: Option<Duration>,
}

impl Terms {
    /// Whether they ask for something.
    #[inline]
    pub(crate) fn are_own(&self) -> bool {
        self.options != Options::NONE || self.timeout.is_some()
    }
}

/// What all ranks say alike, in bits: 0 where nothing is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Options(u32);

/// Where the fields begin, and behind the last; each is a number from 1, or 0.
const ORDER: u32 = 0;
const ENCODING: u32 = 2;
const ALGORITHM: u32 = 5;
const CHANNELS: u32 = 11;
const END: u32 = 22;

/// The number of a value in a list, from 1.
fn number<T: PartialEq>(all: &[T], value: Option<T>) -> u32 {
    let place = value.and_then(|value| all.iter().position(|one| *one == value));
    place.map_or(0, |place| place as u32 + 1)
}

const ORDERS: [Order; 3] = [Order::Any, Order::Rank, Order::Tree];
const _: () = assert!(ORDERS.len() < 1 << (ENCODING - ORDER));
const _: () = assert!(Encoding::ALL.len() < 1 << (ALGORITHM - ENCODING));
const _: () = assert!(Algorithm::ALL.len() < 1 << (CHANNELS - ALGORITHM));
const _: () = assert!(oxccl_plans::schedule::MAX_CHANNELS < 1 << (END - CHANNELS));

impl CallOptions {
    /// Fails for what no communicator with so many channels takes.
    pub(crate) fn terms(&self, max_channels: usize) -> Result<Terms, Error> {
        let wrong = |detail| Err(Error::Config { variable: "options", detail });
        if self.algorithm == Some(Algorithm::Custom) {
            return wrong("a custom schedule is a setting of the communicator's".into());
        }
        if let Some(most) = self.channels
            && !(1..=max_channels).contains(&most)
        {
            let limit = format!("1 to max_channels, which is {max_channels}");
            return wrong(format!("channels must be {limit}, not {most}"));
        }
        if self.timeout == Some(Duration::ZERO) {
            return wrong("timeout must be above 0".into());
        }
        let options = Options(
            number(&ORDERS, self.order) << ORDER
                | number(&Encoding::ALL, self.encoding) << ENCODING
                | number(&Algorithm::ALL, self.algorithm) << ALGORITHM
                | (self.channels.unwrap_or(0) as u32) << CHANNELS,
        );
        Ok(Terms { options, timeout: self.timeout })
    }
}

impl Options {
    /// Nothing.
    pub(crate) const NONE: Options = Options(0);

    fn field(self, from: u32, to: u32) -> usize {
        (self.0 >> from & ((1 << (to - from)) - 1)) as usize
    }

    /// The promised order.
    pub(crate) fn order(self) -> Option<Order> {
        ORDERS.get(self.field(ORDER, ENCODING).wrapping_sub(1)).copied()
    }

    /// The encoding.
    pub(crate) fn encoding(self) -> Option<Encoding> {
        Encoding::ALL.get(self.field(ENCODING, ALGORITHM).wrapping_sub(1)).copied()
    }

    /// The algorithm.
    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        Algorithm::ALL.get(self.field(ALGORITHM, CHANNELS).wrapping_sub(1)).copied()
    }

    /// Most channels; 0: as many as the communicator would take.
    pub(crate) fn channels(self) -> usize {
        self.field(CHANNELS, END)
    }

    /// All but the order, as bits of a signature's first word.
    pub(crate) const PLAN_BITS: u32 = END - ENCODING;

    pub(crate) fn plan_bits(self) -> u32 {
        self.0 >> ENCODING
    }

    /// The options of these bits, without an order.
    pub(crate) const fn of_plan_bits(bits: u32) -> Options {
        Options((bits & ((1 << Options::PLAN_BITS) - 1)) << ENCODING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_back() {
        for order in [None, Some(Order::Any), Some(Order::Rank), Some(Order::Tree)] {
            for algorithm in [None].into_iter().chain(Algorithm::ALL.map(Some)) {
                for encoding in [None].into_iter().chain(Encoding::ALL.map(Some)) {
                    for channels in [None, Some(1), Some(64)] {
                        let timeout = channels.map(|_| Duration::from_secs(1));
                        let given = CallOptions { order, algorithm, encoding, channels, timeout };
                        let terms = given.terms(64).unwrap();
                        assert_eq!(terms.are_own(), given != CallOptions::default());
                        assert_eq!(terms.timeout, timeout);
                        let options = terms.options;
                        assert_eq!(options.order(), order);
                        let plan = Options::of_plan_bits(options.plan_bits());
                        for back in [options, plan] {
                            assert_eq!(back.algorithm(), algorithm);
                            assert_eq!(back.encoding(), encoding);
                            assert_eq!(back.channels(), channels.unwrap_or(0));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn impossible_options_are_refused() {
        let channels = |most| CallOptions { channels: Some(most), ..CallOptions::default() };
        for most in [0, 9, usize::MAX] {
            let error = channels(most).terms(8).unwrap_err().to_string();
            assert!(error.contains("1 to max_channels, which is 8"), "{error}");
        }
        let custom = CallOptions { algorithm: Some(Algorithm::Custom), ..CallOptions::default() };
        assert!(custom.terms(8).is_err());
        let at_once = CallOptions { timeout: Some(Duration::ZERO), ..CallOptions::default() };
        assert!(at_once.terms(8).is_err());
    }
}
