//! Which calls are measured, and by which plans: the flags that `oxccl bench` and
//! `oxccl-against-nccl` share.

use std::time::Duration;

use clap::Args;
use oxccl::plans::algorithms::{Algorithm, Encoding, Entry, catalogue};
use oxccl::{Config, DataType, Kind, OpKind, Order};

use super::case::Case;
use super::sizes;
use crate::failure::Failure;
use crate::names;
use crate::options::{self, Choice, Size, Target};

/// Ranks where nothing says how many.
pub(crate) const RANKS: usize = 2;

/// Sizes, types, operations and roots, with nccl-tests' flags; how long is measured; and what calls
/// are to be carried out by.
#[derive(Args, Clone, Debug)]
pub struct SweepOptions {
    /// How many ranks there are [default: 2].
    #[arg(short = 'g', long = "ranks", visible_alias = "ngpus", value_parser = options::ranks)]
    pub ranks: Option<usize>,
    /// Smallest size; K, M and G are powers of 1,024.
    #[arg(short = 'b', long, default_value = "8")]
    pub minbytes: Size,
    /// Largest size.
    #[arg(short = 'e', long, default_value = "64M")]
    pub maxbytes: Size,
    /// Each size is this much larger than the one before.
    #[arg(short = 'i', long, conflicts_with = "stepfactor")]
    pub stepbytes: Option<Size>,
    /// Each size is this many times the one before.
    #[arg(short = 'f', long, default_value_t = 2)]
    pub stepfactor: usize,
    /// The operation, or all: sum, prod, min, max, avg, mulsum, band, bor, bxor [default: sum].
    #[arg(short = 'o', long, value_parser = options::ops)]
    pub op: Option<Choice<OpKind>>,
    /// The element type, or all: int8, uint8, int32, uint32, int64, uint64, half, bfloat16, float,
    /// double, f8e4m3, f8e5m2.
    #[arg(short = 'd', long, default_value = "float", value_parser = options::data_types)]
    pub datatype: Choice<DataType>,
    /// The root, or -1 for every rank in turn.
    #[arg(short = 'r', long, default_value_t = 0, allow_negative_numbers = true)]
    pub root: i64,

    /// Timed loops; the median counts.
    #[arg(long, default_value = "7", value_parser = options::positive)]
    pub repeats: usize,
    /// About how long a timed loop takes, where no flag says how many calls it has.
    #[arg(long, default_value = "10", value_parser = options::positive)]
    pub repeat_ms: usize,
    /// Whether results are checked (1) or not (0): before and after timing, against all ranks'
    /// inputs.
    #[arg(short = 'c', long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub check: u8,

    /// Uses this algorithm instead of the tuner's choice.
    #[arg(long, value_parser = names::algorithm)]
    pub algorithm: Option<Algorithm>,
    /// Uses this encoding instead of the tuner's choice.
    #[arg(long, value_parser = names::encoding)]
    pub encoding: Option<Encoding>,
    /// Uses this many channels instead of the tuner's choice.
    #[arg(long, value_parser = options::positive)]
    pub channels: Option<usize>,
    /// The promised order of reduction: any, rank or tree [default: any].
    #[arg(long, value_parser = names::order)]
    pub order: Option<Order>,
    /// Whether ranks share one launch for each call, as threads on one GPU do if they can. true: it
    /// is an error if they cannot. false: each launches by itself, for which their streams need
    /// connections of their own.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub single_launch: Option<bool>,
    /// Seconds that a call may wait for other ranks [default: 30].
    #[arg(long, value_parser = options::seconds)]
    pub timeout: Option<Duration>,

    /// Prints one JSON object a row.
    #[arg(long)]
    pub json: bool,
}

impl SweepOptions {
    /// How many ranks there are where no launcher says so.
    pub fn ranks(&self) -> usize {
        self.ranks.unwrap_or(RANKS)
    }

    /// About how long a timed loop takes.
    pub fn repeat_time(&self) -> Duration {
        Duration::from_millis(self.repeat_ms as u64)
    }

    /// Sets in a configuration what the flags say of plans and waiting.
    pub fn set(&self, config: &mut Config) {
        config.advanced.single_launch = self.single_launch.or(config.advanced.single_launch);
        config.timeout = self.timeout.unwrap_or(config.timeout);
        config.order = self.order.unwrap_or(config.order);
        config.pin.algorithm = self.algorithm.or(config.pin.algorithm);
        config.pin.encoding = self.encoding.or(config.pin.encoding);
        config.pin.channels = self.channels.or(config.pin.channels);
    }

    /// The sizes to measure.
    ///
    /// # Errors
    /// Sizes that have no end.
    pub fn sizes(&self) -> Result<Vec<usize>, Failure> {
        let step = match self.stepbytes {
            Some(Size(bytes)) => sizes::Step::Bytes(bytes),
            None => sizes::Step::Factor(self.stepfactor),
        };
        sizes::progression(self.minbytes.0, self.maxbytes.0, step).map_err(Failure::Usage)
    }

    /// What to measure of the target with this many ranks that are configured so.
    ///
    /// # Errors
    /// Wishes that do not fit together, or that nothing can fulfil.
    pub fn cases(
        &self,
        target: Target,
        ranks: usize,
        config: &Config,
    ) -> Result<Vec<Case>, Failure> {
        self.sizes()?;
        let roots = self.roots(ranks)?;
        let mut cases = Vec::new();
        let kinds = match target {
            Target::Kinds(kinds) => kinds,
            Target::Group => Choice::One(Kind::AllReduce),
        };
        for kind in kinds.of(&Kind::ALL) {
            match can_run(kind, ranks, config) {
                Err(_) if kinds == Choice::All => continue,
                other => other.map_err(Failure::Usage)?,
            }
            for data_type in self.datatype.of(&DataType::ALL) {
                for op in self.ops(kind, data_type)? {
                    let own_root = [0];
                    let roots = if kind.is_rooted() { &roots[..] } else { &own_root };
                    cases.extend(roots.iter().map(|&root| Case { kind, data_type, op, root }));
                }
            }
        }
        match cases.is_empty() {
            true => Err(Failure::Usage("no collective fits what is pinned".to_owned())),
            false => Ok(cases),
        }
    }

    fn roots(&self, ranks: usize) -> Result<Vec<usize>, Failure> {
        match usize::try_from(self.root) {
            Ok(root) if root < ranks => Ok(vec![root]),
            Err(_) if self.root == -1 => Ok((0..ranks).collect()),
            _ => Err(Failure::Usage(format!(
                "--root is {}, there are ranks 0 to {}, and -1 for all",
                self.root,
                ranks - 1
            ))),
        }
    }

    fn ops(&self, kind: Kind, data_type: DataType) -> Result<Vec<OpKind>, Failure> {
        if !kind.reduces() {
            return Ok(vec![OpKind::Sum]);
        }
        let op = self.op.unwrap_or(Choice::One(OpKind::Sum));
        let all = op.of(&OpKind::ALL);
        let fitting: Vec<_> = all.into_iter().filter(|op| op.applies_to(data_type)).collect();
        match op {
            Choice::One(op) if fitting.is_empty() && self.datatype != Choice::All => {
                Err(Failure::Usage(format!(
                    "op {op} does not exist for {}: bitwise operations need an integer type",
                    data_type.name()
                )))
            }
            _ => Ok(fitting),
        }
    }
}

/// Whether there is an algorithm, or why not.
fn can_run(kind: Kind, ranks: usize, config: &Config) -> Result<(), String> {
    if kind == Kind::SendRecv && ranks == 1 {
        return Err("send_recv needs at least 2 ranks".to_owned());
    }
    let (placement, slots) = (config.placement(ranks), config.limits().slots);
    let of_kind = || catalogue().filter(|entry| entry.kind == kind);
    let exists = |entry: &&Entry| entry.check(ranks, placement, slots).is_ok();
    let ordered = |entry: &&Entry| exists(entry) && entry.keeps_unrounded(config.order, placement);
    let fits = |entry: &&Entry| {
        config.pin.algorithm.is_none_or(|algorithm| algorithm == entry.algorithm)
            && config.pin.encoding.is_none_or(|encoding| encoding == entry.encoding)
    };
    if kind == Kind::Barrier || of_kind().filter(ordered).any(|entry| fits(&entry)) {
        return Ok(());
    }
    let checks = of_kind().filter(fits).map(|entry| entry.check(ranks, placement, slots));
    if let Some(Err(unavailable)) = checks.reduce(Result::or) {
        return Err(unavailable.to_string());
    }
    let names: Vec<String> = of_kind()
        .filter(ordered)
        .map(|entry| format!("{}/{}", entry.algorithm, entry.encoding))
        .collect();
    Err(format!(
        "no algorithm of {kind} fits what is pinned (--algorithm/--encoding) and order {}; there \
         are {}",
        config.order,
        names.join(", ")
    ))
}
