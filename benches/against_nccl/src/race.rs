//! The contestants of one rank, task by task.

use clap::ValueEnum;
use oxccl::cuda::Stream;
use oxccl::{Collectives, Communicator, ReduceOp};
use oxccl_command::for_type;
use oxccl_command::shared::{Failure, Form, Sample, Shape};

use crate::buffers::{Buffer, Contents};
use crate::contestant::{Contestant, Placed, Setting, Task};
use crate::floor::Floor;
use crate::flush::Flush;
use crate::group::Group;
use crate::nccl::Nccl;
use crate::own::{FEW_BLOCKS, Own};
use crate::report::{Printer, Row, rank_rows};
use crate::start::Start;
use crate::turns::{Course, Entrant, Mode};
use crate::work::Work;

/// A setting that takes so many times as long as the best of its family in a first turn is measured
/// no more.
const HOPELESS: f64 = 1.5;
/// Above, looking at a rank's results takes much longer than the call.
const LARGE_BYTES: usize = 16 << 20;

/// A rank at work.
pub(crate) struct Race<'a> {
    start: &'a Start<'a>,
    control: &'a Communicator,
    stream: &'a Stream,
    printer: &'a Printer,
    floor: Floor,
    own: Own,
    nccl: Option<Nccl>,
    /// With it calls are timed with cold caches, too.
    flush: Option<Flush>,
    seed: u64,
    wrong: u64,
}

impl<'a> Race<'a> {
    /// One rank's.
    pub(crate) fn new(
        start: &'a Start<'a>,
        (control, stream): (&'a Communicator, &'a Stream),
        printer: &'a Printer,
        floor: Floor,
        (own, nccl): (Own, Option<Nccl>),
        flush: Option<Flush>,
    ) -> Race<'a> {
        Race { start, control, stream, printer, floor, own, nccl, flush, seed: 0, wrong: 0 }
    }

    /// oxccl's contestant, and how many elements were wrong.
    pub(crate) fn ended(self) -> (Own, u64) {
        (self.own, self.wrong)
    }

    /// All tasks. All ranks do so together.
    pub(crate) fn run(&mut self, buffers: [Buffer; 2]) -> Result<(), Failure> {
        let (ranks, start) = (self.control.world_size(), self.start);
        let [input, output] = buffers.map(|buffer| buffer.at);
        self.printer.heading();
        match &start.work {
            Work::Group(group) => {
                for &form in Form::value_variants() {
                    let task = group.task(form, ranks, (input, output));
                    self.task::<f32>(&task, group.whole(ranks), Some(group))?;
                }
                Ok(())
            }
            Work::Calls { cases, sizes } => {
                for (case, bytes) in
                    cases.iter().flat_map(|case| sizes.iter().map(move |bytes| (case, *bytes)))
                {
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

    /// All contestants on one task: each setting is checked, those with a chance are timed by
    /// turns, and checked again.
    fn task<T: Sample>(
        &mut self,
        task: &Task,
        whole: Shape,
        group: Option<&Group>,
    ) -> Result<(), Failure> {
        let (rank, ranks) = (self.control.rank(), self.control.world_size());
        let (bytes, kind) = (task.bytes(), task.case().kind);
        self.start.site.watchdog.step(format!("buffers are filled for {kind} of {bytes} bytes"));
        self.seed += task.checked.len() as u64;
        let contents = Contents::<T>::place(self.stream, task, (rank, ranks), self.seed)?;
        let mut settings = Vec::new();
        for contestant in 0..1 + usize::from(self.nccl.is_some()) {
            settings.push(self.contestant(contestant).settings(task)?);
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
        for mode in [Mode::Eager, Mode::Graph, Mode::Cold] {
            let of_mode = rows.iter().filter(|(its, _)| *its == mode).map(|(_, row)| row.clone());
            let mut of_mode: Vec<Row> = of_mode.collect();
            rank_rows(&mut of_mode);
            self.printer.rows(&of_mode);
        }
        Ok(())
    }

    /// Checks every setting, gives each a first turn, and enters those that are to be timed, in
    /// each mode.
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
                if self.flush.is_some() {
                    entrants.push(Entrant::cold(contestant, setting));
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

    fn contestant(&mut self, number: usize) -> &mut dyn Contestant {
        of_number(number, &mut self.own, &mut self.nccl)
    }

    fn course<'b>(
        &'b mut self,
        task: &'b Task,
        contestant: usize,
    ) -> (Course<'b>, &'b mut dyn Contestant) {
        let wanted = self.start.options.sweep.repeat_time();
        let Race { control, stream, flush, own, nccl, start, .. } = self;
        let (meeting, flush) = (&start.captures, flush.as_ref());
        let course = Course { control, stream, task, meeting, flush, wanted };
        (course, of_number(contestant, own, nccl))
    }

    fn step(&mut self, task: &Task, contestant: usize, setting: &Setting) {
        let (bytes, kind) = (task.bytes(), task.case().kind);
        let name = self.contestant(contestant).name();
        let doing = format!("{name} ({}) does {kind} of {bytes} bytes", setting.name);
        self.start.site.watchdog.step(doing);
    }
}

/// oxccl, or NCCL if it is number 1.
fn of_number<'a>(
    number: usize,
    own: &'a mut Own,
    nccl: &'a mut Option<Nccl>,
) -> &'a mut dyn Contestant {
    match (number, nccl) {
        (1, Some(nccl)) => nccl,
        _ => own,
    }
}

/// Which settings of a contestant are timed, by the time and the wrong elements of their first
/// turns: those with a chance in their family; the best of few blocks, which have a target of their
/// own, however slow these are beside all; and wrong ones, to be seen.
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
