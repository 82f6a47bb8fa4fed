//! What each rank of a comparison does.

use std::mem::ManuallyDrop;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use oxccl::cuda::Stream;
use oxccl::{Collectives, Communicator, DataType, Kind, OpKind, ReduceOp};
use oxccl_command::for_type;
use oxccl_command::shared::{Case, Failure, Form, Sample, Shape, Watchdog};
use oxccl_transports::cuda::Context;

use crate::args::Options;
use crate::buffers::{Buffer, Contents};
use crate::contestant::{Contestant, Placed, Setting, Task};
use crate::floor::Floor;
use crate::group::Group;
use crate::library::{NcclError, NcclLibrary, UniqueId};
use crate::nccl::{self, Nccl, Way};
use crate::own::{FEW_BLOCKS, Own};
use crate::report::{Left, LeftOut, Machine, Printer, Row, Started, rank_rows};
use crate::turns::{Course, Entrant, Meeting, Mode, slowest};

/// A setting that takes so many times as long as the best of its family in a first turn is measured no more.
const HOPELESS: f64 = 1.5;
/// Above, looking at a rank's results takes much longer than the call.
const LARGE_BYTES: usize = 16 << 20;

/// What is compared.
pub(crate) enum Work {
    /// Each collective at each size.
    Calls { cases: Vec<Case>, sizes: Vec<usize> },
    /// Buckets, in every form.
    Group(Group),
}

/// What all ranks start from.
pub(crate) struct Start<'a> {
    options: &'a Options,
    work: Work,
    context: &'a Context,
    nccl: Option<NcclLibrary>,
    ways: Vec<Way>,
    ids: Vec<UniqueId>,
    watchdog: &'a Watchdog,
    own_start: Started,
    meeting: Barrier,
    captures: Meeting,
    floor: Mutex<Option<Floor>>,
    /// When a rank went.
    gone: Mutex<Option<Instant>>,
}

impl<'a> Start<'a> {
    /// Before there are threads.
    pub(crate) fn new(
        options: &'a Options,
        work: Work,
        context: &'a Context,
        nccl: Option<NcclLibrary>,
        own_start: Started,
        watchdog: &'a Watchdog,
    ) -> Result<Start<'a>, Failure> {
        let ranks = options.sweep.ranks();
        let ways = nccl::ways(ranks, &options.nccl_ways, &options.nccl_ctas);
        let ids = match &nccl {
            Some(library) => ways.iter().map(|_| library.unique_id()).collect::<Result<_, _>>()?,
            None => Vec::new(),
        };
        let (meeting, floor, gone) = (Barrier::new(ranks), Mutex::default(), Mutex::default());
        let captures = Meeting::new(context, ranks)?;
        Ok(Start {
            options,
            work,
            context,
            nccl,
            ways,
            ids,
            watchdog,
            own_start,
            meeting,
            captures,
            floor,
            gone,
        })
    }

    /// One rank's part. What fails is told at once: other ranks may wait where nobody can tell them to stop.
    pub(crate) fn run(
        &self,
        control: Communicator,
        own: Communicator,
        stream: Stream,
    ) -> Result<(), Failure> {
        let rank = control.rank();
        let ran = self.context.scope(|| self.try_run(control, own, stream));
        if let Err(failure) = &ran {
            self.watchdog.failed(&format!("rank {rank}: {failure}"));
        }
        ran
    }

    fn try_run(
        &self,
        control: Communicator,
        own: Communicator,
        stream: Stream,
    ) -> Result<(), Failure> {
        let (rank, ranks) = (control.rank(), control.world_size());
        let printer = Printer::of(self.options, rank);
        let floor = self.floor(&printer, (rank, ranks), &stream)?;
        let largest = self.largest(ranks);
        let allocate = || Buffer::allocate(self.context, self.nccl.as_ref(), largest);
        // Given back by the end of the process: NCCL's communicators, which last as long, may know them.
        let buffers = ManuallyDrop::new([allocate()?, allocate()?]);
        let [input, output] = &*buffers;
        let at = (input.as_ptr(), output.as_ptr());
        printer.fact(&self.own_start);
        let config = self.options.config()?;
        let joined = ranks > 1 && config.advanced.single_launch != Some(false);
        let own = Own::new(own, joined, config.pin);
        let mut racer = Rank {
            start: self,
            control: &control,
            stream: &stream,
            printer,
            floor,
            own,
            nccl: None,
            seed: 0,
            wrong: 0,
        };
        if let Some(library) = &self.nccl {
            racer.nccl = Some(self.nccl(library, &control, &racer.printer, [input, output])?);
        }
        if let Err(failure) = racer.all(at) {
            // What waits in a stream for another rank would keep it from going; the process ends soon.
            std::mem::forget(racer);
            return Err(failure);
        }
        let wrong = racer.wrong;
        let Rank { own, printer, .. } = racer;
        // Once more, by now warm: whoever reads the rows takes the best.
        self.floor(&printer, (rank, ranks), &stream)?;
        if let Some(task) = self.last_task(ranks, at) {
            self.watchdog.step("a rank goes while another is in a call");
            self.go(&control, own, &task, &stream, &printer)?;
        }
        self.meeting.wait();
        if wrong > 0 { Err(Failure::Wrong { count: wrong }) } else { Ok(()) }
    }

    /// A call that a rank cannot carry out alone.
    fn last_task(&self, ranks: usize, buffers: (*mut u8, *mut u8)) -> Option<Task> {
        let (kind, data_type, op) = (Kind::AllReduce, DataType::U8, OpKind::Sum);
        let case = Case { kind, data_type, op, root: 0 };
        let (input, output) = (buffers.0.cast_const(), buffers.1);
        let call = Placed { case, shape: case.shape(ranks, 1), input, output };
        (ranks > 1).then(|| Task::single(call))
    }

    /// Ends the communicator in the middle of a call of rank 0's: how long that call takes to end.
    fn go(
        &self,
        control: &Communicator,
        mut own: Own,
        task: &Task,
        stream: &Stream,
        printer: &Printer,
    ) -> Result<(), Failure> {
        let (rank, ranks) = (control.rank(), control.world_size());
        own.settings(task)?;
        control.barrier()?;
        self.meeting.wait();
        if rank > 0 {
            // Long enough for the call to wait.
            std::thread::sleep(Duration::from_millis(20));
            lock(&self.gone).get_or_insert_with(Instant::now);
            drop(own);
        } else {
            let ended = own.put(0, task, stream).and_then(|()| own.ended());
            let now = Instant::now();
            let time = lock(&self.gone).map(|gone| now.saturating_duration_since(gone));
            if let (Err(Failure::Collective(_)), Some(time)) = (ended, time) {
                let time_ms = time.as_secs_f64() * 1e3;
                printer.fact(&Left { op: "left", contestant: "oxccl", ranks, time_ms });
            } else {
                return Err(Failure::Usage("a call of one rank alone has ended well".to_owned()));
            }
        }
        Ok(())
    }

    /// Measured by one rank while the others do nothing.
    fn floor(
        &self,
        printer: &Printer,
        (rank, ranks): (usize, usize),
        stream: &Stream,
    ) -> Result<Floor, Failure> {
        self.watchdog.step("the floor is measured");
        self.meeting.wait();
        let mut measured = Ok(());
        if rank == 0 {
            match Floor::measure(self.context, stream) {
                Ok(floor) => *lock(&self.floor) = Some(floor),
                Err(error) => measured = Err(error),
            }
        }
        self.meeting.wait();
        measured?;
        let floor = *lock(&self.floor);
        let floor =
            floor.ok_or_else(|| Failure::Usage("rank 0 has measured no floor".to_owned()))?;
        let version = self.nccl.as_ref().map(|library| library.version().to_string());
        printer.fact(&Machine::of(self.context, version, ranks, &floor)?);
        Ok(floor)
    }

    /// The longest buffer that is needed.
    fn largest(&self, ranks: usize) -> usize {
        match &self.work {
            Work::Group(group) => group.len_bytes(ranks),
            Work::Calls { cases, sizes } => {
                let lens = cases.iter().flat_map(|case| {
                    sizes.iter().map(|bytes| case.shape(ranks, *bytes).bytes(case.data_type))
                });
                lens.max().unwrap_or(0)
            }
        }
    }

    /// Sets NCCL up, way by way. One that a rank cannot be set up with is left out on all; as long as others wait for that
    /// rank, where nobody can tell them to stop, the process is about to end.
    fn nccl(
        &self,
        library: &NcclLibrary,
        control: &Communicator,
        printer: &Printer,
        buffers: [&Buffer; 2],
    ) -> Result<Nccl, Failure> {
        let (rank, ranks) = (control.rank(), control.world_size());
        let (mut nccl, mut all_ms, mut all_bytes) = (Nccl::default(), 0.0, 0);
        for (way, id) in self.ways.iter().zip(&self.ids) {
            let setting = way.setting().name;
            self.watchdog.step(format!("NCCL starts ({setting})"));
            let before = self.context.free_bytes()?;
            self.meeting.wait();
            let start = Instant::now();
            let made = way.connect(library, id, (rank, ranks), buffers);
            let time_ms = start.elapsed().as_secs_f64() * 1e3;
            if let Err(error) = &made {
                self.watchdog.failed(&format!("rank {rank}: NCCL ({setting}): {error}"));
            }
            let [failed, time_ms] =
                slowest(control, [f64::from(u8::from(made.is_err())), time_ms])?;
            let device_bytes = before.saturating_sub(self.context.free_bytes()?) / ranks;
            self.watchdog.recovered();
            control.barrier()?;
            match made {
                Ok(comm) if failed == 0.0 => {
                    nccl.add(*way, comm);
                    (all_ms, all_bytes) = (all_ms + time_ms, all_bytes + device_bytes);
                }
                made => {
                    let why =
                        made.err().map_or("another rank failed".to_owned(), |e| e.to_string());
                    let (op, contestant) = ("left_out", "nccl");
                    printer.fact(&LeftOut { op, contestant, ranks, setting, why });
                }
            }
        }
        let count = nccl.len();
        if count == 0 {
            return Err(NcclError::NoWay.into());
        }
        let (time_ms, device_bytes) = (all_ms / count as f64, all_bytes / count);
        printer.fact(&Started { op: "start", contestant: "nccl", ranks, time_ms, device_bytes });
        Ok(nccl)
    }
}

/// A rank at work.
struct Rank<'a> {
    start: &'a Start<'a>,
    control: &'a Communicator,
    stream: &'a Stream,
    printer: Printer,
    floor: Floor,
    own: Own,
    nccl: Option<Nccl>,
    seed: u64,
    wrong: u64,
}

impl Rank<'_> {
    fn all(&mut self, buffers: (*mut u8, *mut u8)) -> Result<(), Failure> {
        let (ranks, start) = (self.control.world_size(), self.start);
        self.printer.heading();
        match &start.work {
            Work::Group(group) => {
                for &form in Form::value_variants() {
                    let task = group.task(form, ranks, buffers);
                    self.task::<f32>(&task, group.whole(ranks), Some(group))?;
                }
                Ok(())
            }
            Work::Calls { cases, sizes } => {
                for (case, bytes) in
                    cases.iter().flat_map(|case| sizes.iter().map(move |bytes| (case, *bytes)))
                {
                    let (input, output) = (buffers.0.cast_const(), buffers.1);
                    let shape = case.shape(ranks, bytes);
                    let task = Task::single(Placed { case: *case, shape, input, output });
                    if shape.count > 0 {
                        for_type!(case.data_type, T => self.task::<T>(&task, shape, None))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// All contestants on one task: each setting is checked, those with a chance are timed by turns, and checked again.
    fn task<T: Sample>(
        &mut self,
        task: &Task,
        whole: Shape,
        group: Option<&Group>,
    ) -> Result<(), Failure> {
        let (rank, ranks) = (self.control.rank(), self.control.world_size());
        let (bytes, kind) = (task.bytes(), task.case().kind);
        self.start.watchdog.step(format!("buffers are filled for {kind} of {bytes} bytes"));
        self.seed += task.checked.len() as u64;
        let contents = Contents::<T>::place(self.stream, task, (rank, ranks), self.seed)?;
        let mut settings = Vec::new();
        for contestant in 0..self.contestants() {
            let contestant = self.contestant(contestant);
            let takes = contestant.takes(task);
            settings.push(if takes { contestant.settings(task)? } else { Vec::new() });
        }
        let mut wrongs = Vec::new();
        let mut entrants = self.chosen(task, &contents, &settings, &mut wrongs)?;
        self.race(task, &settings, &mut entrants)?;
        let mut rows = Vec::new();
        for (entrant, mut wrong) in entrants.iter().zip(wrongs) {
            let setting = &settings[entrant.contestant][entrant.setting];
            if bytes <= LARGE_BYTES || is_fastest(entrant, &entrants) {
                wrong += self.check(task, &contents, entrant, setting)?;
            }
            self.wrong += wrong;
            let who = (self.contestant(entrant.contestant).name(), setting);
            let row = Row::of((task, whole, ranks), group, &self.floor, who, entrant, wrong);
            rows.push((entrant.mode, row));
        }
        for mode in [Mode::Eager, Mode::Graph] {
            let of_mode = rows.iter().filter(|(its, _)| *its == mode).map(|(_, row)| row.clone());
            let mut of_mode: Vec<Row> = of_mode.collect();
            rank_rows(&mut of_mode);
            self.printer.rows(&of_mode);
        }
        Ok(())
    }

    /// Checks every setting, gives each a first turn, and enters those that are to be timed, in each mode.
    fn chosen<T: Sample>(
        &mut self,
        task: &Task,
        contents: &Contents<T>,
        settings: &[Vec<Setting>],
        wrongs: &mut Vec<u64>,
    ) -> Result<Vec<Entrant>, Failure> {
        let mut entrants = Vec::new();
        for (contestant, settings) in settings.iter().enumerate() {
            let (mut first, mut came_to) = (Vec::new(), Vec::new());
            for (setting, described) in settings.iter().enumerate() {
                let mut entrant = Entrant::eager(contestant, setting);
                let wrong = self.check(task, contents, &entrant, described)?;
                let (course, on) = self.course(task, contestant);
                came_to.push((entrant.calibrate(on, &course)?, wrong));
                first.push((entrant, wrong));
            }
            let timed = are_timed(settings, &came_to);
            let timed = first.into_iter().zip(timed).filter(|(_, is_timed)| *is_timed);
            for ((entrant, wrong), _) in timed {
                let setting = entrant.setting;
                entrants.push(entrant);
                wrongs.push(wrong);
                if self.start.options.graph > 0 {
                    let calls = self.start.options.graph;
                    self.step(task, contestant, &settings[setting]);
                    let (course, on) = self.course(task, contestant);
                    let mut entrant = Entrant::graph(contestant, setting, calls, on, &course)?;
                    entrant.calibrate(on, &course)?;
                    entrants.push(entrant);
                    wrongs.push(0);
                }
            }
        }
        Ok(entrants)
    }

    fn race(
        &mut self,
        task: &Task,
        settings: &[Vec<Setting>],
        entrants: &mut [Entrant],
    ) -> Result<(), Failure> {
        for _ in 0..self.start.options.sweep.repeats {
            for entrant in &mut *entrants {
                self.step(task, entrant.contestant, &settings[entrant.contestant][entrant.setting]);
                let (course, on) = self.course(task, entrant.contestant);
                entrant.turn(on, &course)?;
            }
        }
        for entrant in entrants {
            self.step(task, entrant.contestant, &settings[entrant.contestant][entrant.setting]);
            let (course, on) = self.course(task, entrant.contestant);
            entrant.time_host(on, &course)?;
        }
        Ok(())
    }

    /// Elements that are wrong, on all ranks, after a launch of an entrant.
    fn check<T: Sample>(
        &mut self,
        task: &Task,
        contents: &Contents<T>,
        entrant: &Entrant,
        setting: &Setting,
    ) -> Result<u64, Failure> {
        self.step(task, entrant.contestant, setting);
        if self.start.options.sweep.check == 0 {
            return Ok(0);
        }
        contents.poison(self.stream, task)?;
        // Others may write into this output.
        self.control.barrier()?;
        let (course, on) = self.course(task, entrant.contestant);
        entrant.launch(on, &course)?;
        self.stream.synchronize()?;
        // Rank 0 may have launched for all.
        self.control.barrier()?;
        self.contestant(entrant.contestant).ended()?;
        let mut wrong = [contents.wrong(self.stream, task)?];
        self.control.all_reduce_in_place(&mut wrong, ReduceOp::Sum)?;
        Ok(wrong[0])
    }

    fn contestants(&self) -> usize {
        1 + usize::from(self.nccl.is_some())
    }

    fn contestant(&mut self, number: usize) -> &mut dyn Contestant {
        match (number, &mut self.nccl) {
            (1, Some(nccl)) => nccl,
            _ => &mut self.own,
        }
    }

    fn course<'a>(
        &'a mut self,
        task: &'a Task,
        contestant: usize,
    ) -> (Course<'a>, &'a mut dyn Contestant) {
        let wanted = self.start.options.sweep.repeat_time();
        let (control, stream, meeting) = (self.control, self.stream, &self.start.captures);
        let course = Course { control, stream, task, meeting, wanted };
        (course, self.contestant(contestant))
    }

    fn step(&mut self, task: &Task, contestant: usize, setting: &Setting) {
        let (bytes, kind) = (task.bytes(), task.case().kind);
        let name = self.contestant(contestant).name();
        let doing = format!("{name} ({}) does {kind} of {bytes} bytes", setting.name);
        self.start.watchdog.step(doing);
    }
}

/// Which settings of a contestant are timed, by the time and the wrong elements of their first turns: those with a chance in their
/// family; the best of few blocks, which have a target of their own, however slow these are beside all; and wrong ones, to be seen.
fn are_timed(settings: &[Setting], first: &[(f64, u64)]) -> Vec<bool> {
    let best = |is_alike: &dyn Fn(&Setting) -> bool| {
        let alike = settings.iter().zip(first).filter(|(setting, _)| is_alike(setting));
        alike.map(|(_, (time_us, _))| *time_us).fold(f64::INFINITY, f64::min)
    };
    let is_few = |setting: &Setting| setting.blocks.is_some_and(|blocks| blocks <= FEW_BLOCKS);
    let is_timed = |(setting, (time_us, wrong)): (&Setting, &(f64, u64))| {
        *time_us <= HOPELESS * best(&|other| other.family == setting.family)
            || is_few(setting) && *time_us <= best(&is_few)
            || *wrong > 0
    };
    settings.iter().zip(first).map(is_timed).collect()
}

/// Whether it is the fastest of its contestant's.
fn is_fastest(entrant: &Entrant, all: &[Entrant]) -> bool {
    let mut alike = all.iter().filter(|other| other.contestant == entrant.contestant);
    alike.all(|other| entrant.median_us() <= other.median_us())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|broken| broken.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_blocks_and_wrong_results_stay_in_the_race() {
        let setting = |family: &'static str, blocks: usize| {
            let name = format!("{family} x{blocks}");
            Setting { family, name, blocks: Some(blocks) }
        };
        let settings = [
            setting("windows", 128),
            setting("windows", 64),
            setting("windows", 32),
            setting("slots", 128),
            setting("slots", 128),
        ];
        let first = [(100.0, 0), (160.0, 0), (300.0, 0), (400.0, 0), (900.0, 7)];
        assert_eq!(are_timed(&settings, &first), [true, true, false, true, true]);
    }
}
