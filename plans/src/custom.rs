//! Custom schedules, proven and ready for calls of their collective.

use crate::algorithms::{Algorithm, Encoding};
use crate::collective::{Kind, Order};
use crate::msccl::plan::{PlanFault, from_plan, is_plan};
use crate::msccl::{Blocks, MscclFault, from_xml};
use crate::schedule::{
    FileError, FileFault, Instruction, MAX_CHANNELS, NO_SEGMENTS, Notes, Operand, Schedule,
    ScheduleFile, Slots,
};
use crate::topology::Processor;
use crate::tune::{Limits, NoAlgorithm, Plan, Question, channels};
use crate::verify::{Verified, Violation, infer_raw, verify};
use oxccl_format::Scale;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// A proven custom schedule. With `Config::schedule` it carries out the calls of its
/// collective.
#[derive(Clone, Debug)]
pub struct CustomSchedule {
    name: String,
    notes: Notes,
    verified: Arc<Verified>,
    encoding: Encoding,
    /// What ranks compare.
    fingerprint: u64,
}

/// Why a file's schedule cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CustomError {
    /// The file holds no schedule.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is MSCCL's, and cannot be represented, or is wrong.
    #[error("{}: {fault}\n{}", .path.display(), .fault.story())]
    Msccl {
        /// The file.
        path: PathBuf,
        /// Why.
        fault: MscclFault,
    },
    /// The file is a plan of MSCCL++'s, and cannot be represented, or is wrong.
    #[error("{}: {fault}\n{}", .path.display(), .fault.story())]
    Plan {
        /// The file.
        path: PathBuf,
        /// Why.
        fault: Box<PlanFault>,
    },
    /// The schedule is wrong.
    #[error("{}: {violation}\n{story}", .path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        violation: Violation,
        /// The same, step by step.
        story: String,
    },
}

impl CustomSchedule {
    /// Proves a schedule. Sources that are raw need not say so.
    ///
    /// # Errors
    /// The [`Violation`] that makes it wrong; [`Violation::story`] tells it.
    pub fn prove(name: &str, mut file: ScheduleFile) -> Result<CustomSchedule, Violation> {
        infer_raw(&mut file.schedule);
        let notes = std::mem::take(&mut file.notes);
        let fingerprint = fingerprint(&file);
        let verified = verify(file.schedule, file.order, file.in_place)?;
        let encoding = encoding(verified.schedule());
        Ok(CustomSchedule {
            name: name.to_owned(),
            notes,
            verified: Arc::new(verified),
            encoding,
            fingerprint,
        })
    }

    /// Reads and proves a file.
    ///
    /// # Errors
    /// [`CustomError`]
    pub fn read(path: &Path) -> Result<CustomSchedule, CustomError> {
        CustomSchedule::read_with(path, Blocks::default())
    }

    /// As [`CustomSchedule::read`], with what becomes of the thread blocks of a file of MSCCL's.
    ///
    /// # Errors
    /// [`CustomError`]
    pub fn read_with(path: &Path, blocks: Blocks) -> Result<CustomSchedule, CustomError> {
        let file = ScheduleFile::read_with(path, blocks)?;
        let (mut schedule, notes) = (file.schedule.clone(), file.notes.clone());
        CustomSchedule::prove(&path.display().to_string(), file).map_err(|violation| {
            infer_raw(&mut schedule);
            let story = violation.story(&schedule, &notes);
            CustomError::Refused { path: path.to_owned(), violation, story }
        })
    }

    /// What it is called: its file's path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What its author says of it.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        self.verified.schedule()
    }

    /// The order of reduction that it has been proven to keep.
    pub fn order(&self) -> Order {
        self.verified.promise()
    }

    /// Channels without which it cannot run: one where each rank has one list.
    pub fn needed_channels(&self) -> usize {
        self.verified.needed_channels()
    }

    /// How many channels share the work of a call: as many as of the catalogue's schedules in this
    /// encoding, and those that it needs.
    pub fn channels(&self, question: &Question, processor: Processor) -> usize {
        let encoding = match question.collective.kind {
            Kind::SendRecv => carrier(self.schedule()),
            _ => self.encoding,
        };
        channels(question, encoding, processor).max(self.needed_channels())
    }

    /// How its data crosses.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// What the slots that it uses hold, at a rank on such a device.
    pub fn tile_bytes(&self, limits: &Limits, nodes: usize) -> usize {
        let [ll, slots, ll128] = payload_lanes(self.schedule());
        let plain = limits.plain_slot_bytes(nodes, self.schedule().collective.ranks);
        let payloads = [(ll || ll128, limits.ll_slot_bytes), (slots, plain)];
        let used = payloads.into_iter().filter(|(used, _)| *used).map(|(_, bytes)| bytes);
        used.min().unwrap_or(plain)
    }

    /// The schedule, proven.
    pub fn verified(&self) -> &Arc<Verified> {
        &self.verified
    }

    /// What ranks compare.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The plan for a call of its collective, by ranks on such devices; none for calls of another
    /// kind.
    ///
    /// # Errors
    /// [`NoAlgorithm`] says why it does not serve for a call.
    pub fn plan(
        &self,
        question: &Question,
        processor: Processor,
    ) -> Result<Option<Plan>, NoAlgorithm> {
        let schedule = self.verified.schedule();
        if schedule.collective.kind != question.collective.kind {
            return Ok(None);
        }
        if let Some(reason) = self.misfit(question) {
            let (kind, order) = (question.collective.kind, question.order);
            let detail = format!("the schedule {} {reason}", self.name);
            return Err(NoAlgorithm { kind, order, detail });
        }
        Ok(Some(Plan {
            algorithm: Algorithm::Custom,
            encoding: self.encoding,
            channels: self.channels(question, processor),
            tile_bytes: self.tile_bytes(&question.limits, question.nodes),
            stream: false,
            cma: false,
            copies: false,
            reason: format!("the schedule {}", self.name),
            predicted_ns: None,
        }))
    }

    /// Why it does not serve for a call of its kind.
    fn misfit(&self, question: &Question) -> Option<String> {
        let (schedule, asked) = (self.verified.schedule(), question.collective);
        let made = schedule.collective;
        let promised = self.verified.promise() == question.order
            && (self.verified.single_rounding() || question.data_type.accumulates_in_itself());
        let ([ll, slots, ll128], here) = (lanes(schedule), question.limits.slots);
        let needed = self.verified.needed_channels();
        let (most, setting) = match asked.kind {
            Kind::SendRecv => (
                question.limits.channels_of_message(carrier(schedule), question.nodes),
                "OXCCL_MESSAGE_CHANNELS",
            ),
            _ => (question.limits.max_channels, "OXCCL_MAX_CHANNELS"),
        };
        if made.ranks != asked.ranks {
            Some(format!("is for {} ranks, not for {}", made.ranks, asked.ranks))
        } else if made != asked {
            let (roots, receivers) = ((made.root, made.receiver), (asked.root, asked.receiver));
            Some(format!("has root and receiver {roots:?}, the call {receivers:?}"))
        } else if question.order != Order::Any && asked.kind.reduces() && !promised {
            Some(format!("does not promise order {} for this type", question.order))
        } else if may_be_in_place(question) && !self.verified.in_place() {
            Some(format!("does not promise to work in place, as calls of {} may", asked.kind))
        } else if needed > MAX_CHANNELS {
            Some(format!(
                "has ranks with {} lists, which need {needed} channels, and there are {MAX_CHANNELS} at most",
                schedule.lists_per_rank
            ))
        } else if needed > most.min(question.pin.channels.unwrap_or(most)) {
            Some(format!(
                "has ranks with {} lists, which need {needed} channels: set {setting}={needed}",
                schedule.lists_per_rank
            ))
        } else if schedule.uses_windows() && !question.windows {
            Some("uses peers' buffers in place, which peers do not reach here".to_owned())
        } else if schedule.switched().any(|joined| question.multicast != Some(joined)) {
            Some(
                "has a switch reduce or multicast, of which there is none between these ranks"
                    .to_owned(),
            )
        } else if schedule.uses_multicast() && !reduced_by_switch(question) {
            Some(format!("has a switch reduce, which does not know {} of this type", question.op))
        } else if schedule.uses_rails() && !question.fabric_reduces {
            Some("has the fabric's switches reduce, and no executor drives them".to_owned())
        } else if ll128 && !question.ll128 {
            Some("uses the ll128 lane, which there is not between these ranks".to_owned())
        } else if (ll && schedule.slots.ll > here.ll)
            || (slots && schedule.slots.slots > here.slots)
            || (ll128 && schedule.slots.ll128 > here.ll128)
        {
            let Slots { ll, ll128, slots: plain } = here;
            let wanted = schedule.slots.slots;
            let remedy = match slots && wanted > plain {
                true => format!("; OXCCL_SLOTS={wanted} has so many on the slots lane"),
                false => String::new(),
            };
            Some(format!(
                "is made for more slots than there are: {ll} on the ll lane, {ll128} on the ll128 lane and {plain} on the slots lane{remedy}"
            ))
        } else {
            None
        }
    }
}

/// Whether a switch can do what the call asks for.
fn reduced_by_switch(question: &Question) -> bool {
    let (fold, scale) = question.op.lower();
    let known = scale == Scale::None && question.data_type.has_multicast(fold);
    known || !question.collective.kind.reduces()
}

/// Whether any rank's call may be in place: only calls of all-to-all say so, and the others are
/// taken to be.
fn may_be_in_place(question: &Question) -> bool {
    match question.collective.kind {
        Kind::AllToAll => question.in_place,
        Kind::SendRecv | Kind::Barrier => false,
        _ => true,
    }
}

impl ScheduleFile {
    /// Reads a file: of MSCCL's, if its name ends with `.xml`, otherwise JSON, which may be a plan
    /// of MSCCL++'s. Whether the schedule is right is for [`CustomSchedule::prove`] to say. What a
    /// file of MSCCL's or MSCCL++'s does out of place may be right in place too.
    ///
    /// # Errors
    /// [`CustomError::File`], [`CustomError::Msccl`] and [`CustomError::Plan`] name the file and
    /// what is at fault in it: the rank and the step, the line, or the operation.
    pub fn read(path: &Path) -> Result<ScheduleFile, CustomError> {
        ScheduleFile::read_with(path, Blocks::default())
    }

    /// As [`ScheduleFile::read`], with what becomes of the thread blocks of a file of MSCCL's.
    ///
    /// # Errors
    /// As [`ScheduleFile::read`].
    pub fn read_with(path: &Path, blocks: Blocks) -> Result<ScheduleFile, CustomError> {
        let error = |fault| CustomError::File(FileError { path: path.to_owned(), fault });
        let text = std::fs::read_to_string(path).map_err(|fault| error(FileFault::Read(fault)))?;
        let is_xml = path.extension().is_some_and(|extension| extension == "xml");
        let mut file = if is_xml {
            let refused = |fault| CustomError::Msccl { path: path.to_owned(), fault };
            from_xml(&text, blocks).map_err(refused)?
        } else if is_plan(&text) {
            let refused =
                |fault| CustomError::Plan { path: path.to_owned(), fault: Box::new(fault) };
            from_plan(&text).map_err(refused)?
        } else {
            return ScheduleFile::from_json(&text).map_err(error);
        };
        infer_raw(&mut file.schedule);
        file.in_place = file.in_place || verify(file.schedule.clone(), file.order, true).is_ok();
        Ok(file)
    }
}

impl PartialEq for CustomSchedule {
    fn eq(&self, other: &CustomSchedule) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// Of what is done, whatever is said of it.
fn fingerprint(file: &ScheduleFile) -> u64 {
    // This hasher's keys are fixed, so all ranks of one build agree.
    let mut hasher = DefaultHasher::new();
    file.to_json().hash(&mut hasher);
    hasher.finish()
}

/// Whether data goes over the LL lane, over the slots lane, and over the LL128 lane.
fn lanes(schedule: &Schedule) -> [bool; 3] {
    schedule.most_segments().map(|(_, segments)| segments > 0)
}

/// The same without tokens, which fit into any slot.
fn payload_lanes(schedule: &Schedule) -> [bool; 3] {
    let mut used = [false; 3];
    for instruction in schedule.lists.iter().flatten() {
        let Instruction::ReduceCopy { sources, destinations, .. } = instruction else { continue };
        if sources.iter().any(|source| source.operand == Operand::Tokens) {
            continue;
        }
        for operand in destinations {
            let Some((sent, _)) = operand.sent() else { continue };
            let lanes = used.iter_mut().zip(NO_SEGMENTS);
            lanes.for_each(|(used, (lane, _))| *used |= sent == lane);
        }
    }
    used
}

/// The encoding of the entries of the catalogue that need the connections which this schedule
/// needs. Tokens need the least: [`Encoding::Windows`].
pub fn carrier(schedule: &Schedule) -> Encoding {
    let ([ll, ..], [_, slots, ll128]) = (payload_lanes(schedule), lanes(schedule));
    match (ll || ll128, slots) {
        (true, _) => Encoding::Ll,
        (false, true) => Encoding::Slots,
        (false, false) => Encoding::Windows,
    }
}

fn encoding(schedule: &Schedule) -> Encoding {
    let [ll, _, ll128] = lanes(schedule);
    match (schedule.uses_windows(), ll, ll128) {
        (true, ..) => Encoding::Windows,
        (false, true, _) => Encoding::Ll,
        (false, false, true) => Encoding::Ll128,
        (false, false, false) => Encoding::Slots,
    }
}
