//! Recipes: what candidates are made of, those that are tried first, and how one is changed.

use super::Goal;
use super::matching::Matching;
use super::script::{Reach, Script};
use super::trees::{Line, Shape, Trees};
use super::ways::Ways;
use crate::collective::Kind;
use crate::random::Random;
use crate::schedule::{Lane, Schedule};

/// Most chunks of all ranks.
const MOST_CHUNKS: usize = 512;
/// No chunk is shorter, unless a rank has one alone.
const LEAST_BYTES: usize = 4 << 10;

/// What a candidate is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recipe {
    /// The trees that are gone up; as `down` where nothing is reduced.
    up: Shape,
    /// The trees that are gone down; as `up` where nothing is gathered.
    down: Shape,
    /// Chunks of each rank.
    chunks: usize,
    /// The lane of messages inside of nodes.
    lane: Lane,
    /// Whose buffers are written, or read, in place.
    reach: Reach,
    /// Whether other nodes are told before the own one.
    across_first: bool,
    /// Lists of each rank, over which chunks are dealt.
    lists: usize,
}

/// What recipes are made from.
pub(super) struct Larder {
    kind: Kind,
    ways: Ways,
    /// Bytes of one rank's part.
    part_bytes: usize,
    floors: Vec<f64>,
    chunks: Vec<usize>,
    lanes: Vec<Lane>,
    lists: Vec<usize>,
}

impl Larder {
    pub(super) fn new(goal: &Goal<'_>) -> Larder {
        let ways = Ways::new(goal.network);
        let (ranks, part_bytes) = (ways.ranks(), goal.bytes / ways.ranks());
        let fits = |chunks: &usize| {
            *chunks == 1 || (ranks * chunks <= MOST_CHUNKS && part_bytes / chunks >= LEAST_BYTES)
        };
        let mut lanes = vec![Lane::Slots];
        if ways.members(0).len() > 1 {
            lanes.push(Lane::Ll);
            lanes.extend(goal.ll128.then_some(Lane::Ll128));
        }
        let most = goal.channels.min(ranks).max(1);
        Larder {
            kind: goal.kind,
            part_bytes,
            floors: ways.floors(),
            chunks: [1, 2, 3, 4, 6, 8, 12, 16].into_iter().filter(fits).collect(),
            lanes,
            lists: [1, 2, 4, 8, 16].into_iter().filter(|lists| *lists <= most).collect(),
            ways,
        }
    }

    /// The schedule of a recipe; none if it comes to nothing.
    pub(super) fn schedule(&self, recipe: &Recipe) -> Option<Schedule> {
        let (chunks, chunk_bytes) = (recipe.chunks, self.part_bytes.div_ceil(recipe.chunks));
        let trees = |shape| Trees::new(&self.ways, shape, chunks, chunk_bytes);
        let up = match self.kind {
            Kind::AllGather => None,
            _ => Some(trees(recipe.up)?),
        };
        let down = match self.kind {
            Kind::ReduceScatter => None,
            _ if up.is_some() && recipe.up == recipe.down => up.clone(),
            _ => Some(trees(recipe.down)?),
        };
        let script = Script {
            ways: &self.ways,
            kind: self.kind,
            chunks,
            chunk_bytes,
            up: up.as_ref(),
            down: down.as_ref(),
            lane: recipe.lane,
            reach: recipe.reach,
            across_first: recipe.across_first,
            list: (0, recipe.lists),
        };
        script.schedule()
    }

    /// Those that are tried first.
    pub(super) fn firsts(&self) -> Vec<Recipe> {
        let mut firsts = Vec::new();
        let few = &self.chunks[..self.chunks.len().min(2)];
        for &chunks in few {
            for reach in [Reach::Last, Reach::Node, Reach::Nobody] {
                for shape in self.shapes() {
                    let recipe = self.plain(Recipe {
                        up: shape,
                        down: shape,
                        chunks,
                        lane: Lane::Slots,
                        reach,
                        across_first: true,
                        lists: 1,
                    });
                    if !firsts.contains(&recipe) {
                        firsts.push(recipe);
                    }
                }
            }
        }
        let flagged = firsts.clone().into_iter().filter(|recipe| recipe.chunks == 1);
        let others = self.lanes[1..].iter();
        let flagged: Vec<Recipe> = others
            .flat_map(|lane| flagged.clone().map(|recipe| Recipe { lane: *lane, ..recipe }))
            .map(|recipe| self.plain(recipe))
            .collect();
        firsts.extend(flagged);
        let most = self.lists.last().copied().unwrap_or(1);
        let apart = firsts.clone().into_iter().filter(|one| most > 1 && one.reach == Reach::Nobody);
        firsts.extend(apart.map(|recipe| Recipe { lists: most, ..recipe }));
        firsts
    }

    /// A recipe that is like this one.
    pub(super) fn changed(&self, recipe: &Recipe, random: &mut Random) -> Recipe {
        let mut changed = *recipe;
        for _ in 0..1 + random.below(2) {
            match random.below(8) {
                0 => {
                    changed.up = self.shape(random);
                    changed.down = changed.up;
                }
                1 => changed.up = self.shape(random),
                2 => changed.down = self.shape(random),
                3 | 4 => changed.chunks = random.one(&self.chunks),
                5 => changed.lane = random.one(&self.lanes),
                6 => changed.lists = random.one(&self.lists),
                _ => match random.below(2) {
                    0 => changed.reach = random.one(&[Reach::Nobody, Reach::Last, Reach::Node]),
                    _ => changed.across_first = !changed.across_first,
                },
            }
        }
        self.plain(changed)
    }

    /// The same where a part that says nothing of the collective, or of these ranks, is as in
    /// others.
    fn plain(&self, mut recipe: Recipe) -> Recipe {
        match self.kind {
            Kind::AllGather => recipe.up = recipe.down,
            Kind::ReduceScatter => recipe.down = recipe.up,
            _ => {}
        }
        recipe.across_first |= self.ways.nodes() == 1;
        // Messages with flags order nothing but themselves, and an input that is read in place may
        // be the output that is written.
        if self.kind == Kind::AllReduce && recipe.lane.has_flags() {
            recipe.reach = Reach::Nobody;
        }
        // Lists reach into nobody's buffers.
        if recipe.lists > 1 {
            recipe.reach = Reach::Nobody;
        }
        // Only what is told goes to those who pass it on in place.
        if self.kind == Kind::ReduceScatter && recipe.reach == Reach::Node {
            recipe.reach = Reach::Last;
        }
        recipe
    }

    /// All shapes that chance decides nothing of.
    fn shapes(&self) -> Vec<Shape> {
        use Line::{Chain, Star};
        let mut shapes = vec![Shape::Fixed { inner: Star, outer: Star }];
        if self.ways.nodes() > 1 {
            shapes.push(Shape::Fixed { inner: Star, outer: Chain });
        }
        for (floor, relays) in
            self.floors.iter().flat_map(|floor| [(*floor, false), (*floor, true)])
        {
            shapes.push(Shape::Matched(Matching { floor, once: true, relays, seed: None }));
        }
        if self.ways.nodes() > 1 {
            let pairs = [(Chain, Star), (Chain, Chain)];
            shapes.extend(pairs.map(|(inner, outer)| Shape::Fixed { inner, outer }));
        }
        shapes.push(Shape::Around);
        shapes
    }

    fn shape(&self, random: &mut Random) -> Shape {
        if random.below(3) == 0 {
            return random.one(&self.shapes());
        }
        Shape::Matched(Matching {
            floor: random.one(&self.floors),
            once: self.ways.nodes() == 1 || random.below(4) > 0,
            relays: random.below(2) == 0,
            seed: Some(random.below(1 << 16) as u64),
        })
    }
}

impl std::fmt::Display for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.up == self.down {
            true => write!(f, "{}", self.up)?,
            false => write!(f, "up {}, down {}", self.up, self.down)?,
        }
        let plural = if self.chunks == 1 { "chunk" } else { "chunks" };
        write!(f, ", {} {plural} a rank, {}", self.chunks, self.lane.name())?;
        match self.reach {
            Reach::Nobody if self.lists > 1 => write!(f, ", {} lists a rank", self.lists),
            Reach::Nobody => Ok(()),
            Reach::Last => f.write_str(" and windows"),
            Reach::Node => f.write_str(" and windows with notices"),
        }
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Shape::Matched(Matching { seed: None, .. }) => f.write_str("matched by turns"),
            Shape::Matched(Matching { seed: Some(seed), .. }) => {
                write!(f, "matched by chance {seed}")
            }
            Shape::Fixed { inner, outer } => {
                let line = |line: &Line| if *line == Line::Star { "star" } else { "chain" };
                write!(f, "{} of {}s", line(outer), line(inner))
            }
            Shape::Around => f.write_str("rings both ways"),
        }
    }
}
