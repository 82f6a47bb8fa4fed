//! What the CUDA compiler made of the kernels: registers, spills, accesses and size.
#![allow(clippy::unwrap_used)]

use oxccl_kernels::image::{
    self, FATBIN, HOT_FATBIN, NVCC, RESOURCES, TARGETS, TRACED_FATBIN, TRACED_TARGETS,
};
use oxccl_kernels::{DataType, Fold};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One kernel on one target, from ptxas' report.
#[derive(Debug, Default)]
struct Resources {
    stack_bytes: u32,
    spill_bytes: u32,
    registers: u32,
}

fn skipped() -> bool {
    if FATBIN.is_none() {
        skip("resources", "built without nvcc, so there are no kernels to look at");
    }
    FATBIN.is_none()
}

/// The number in front of `what`.
fn number(line: &str, what: &str) -> u32 {
    let front = line.split(what).next().unwrap_or_default();
    let digits = front.rsplit(|c: char| !c.is_ascii_digit() && c != ' ').next().unwrap_or_default();
    digits.split_whitespace().next_back().and_then(|digits| digits.parse().ok()).unwrap_or(u32::MAX)
}

fn report() -> BTreeMap<(String, u32), Resources> {
    let mut kernels = BTreeMap::new();
    let mut current = (String::new(), 0);
    for line in RESOURCES.unwrap_or_default().lines() {
        if line.contains("Compiling entry function") {
            let mut quoted = line.split('\'');
            let name = quoted.nth(1).unwrap().to_owned();
            let target = quoted.nth(1).unwrap().trim_start_matches("sm_").parse().unwrap();
            current = (name, target);
        } else if line.contains("bytes stack frame") {
            let entry: &mut Resources = kernels.entry(current.clone()).or_default();
            entry.stack_bytes = number(line, " bytes stack frame");
            entry.spill_bytes =
                number(line, " bytes spill stores") + number(line, " bytes spill loads");
        } else if line.contains(" registers") {
            let entry: &mut Resources = kernels.entry(current.clone()).or_default();
            entry.registers = number(line, " registers");
        }
    }
    kernels
}

/// The kernels of one type.
fn names() -> impl Iterator<Item = String> {
    image::kernels().map(|(data_type, fold)| image::kernel_name(data_type, fold))
}

#[test]
fn no_kernel_spills() {
    if skipped() {
        return;
    }
    let report = report();
    let check = |targets: &[u32], names: &[String]| {
        for (target, name) in targets.iter().flat_map(|of| names.iter().map(move |name| (of, name)))
        {
            let found = report.get(&(name.clone(), *target));
            let found = found.unwrap_or_else(|| panic!("{name} is missing for sm_{target}"));
            assert_eq!(found.stack_bytes, 0, "{name} on sm_{target} keeps a stack");
            assert_eq!(found.spill_bytes, 0, "{name} on sm_{target} spills");
            assert!((16..=128).contains(&found.registers), "{name} on sm_{target}: {found:?}");
        }
        targets.len() * names.len()
    };
    let hot = image::HOT.iter().map(|(schedule, sums)| image::hot_name(schedule, *sums));
    let untraced: Vec<_> = names().chain([image::ANY_KERNEL.to_owned()]).chain(hot).collect();
    let traced: Vec<_> = image::traced_kernels().map(|(_, name)| name).collect();
    let looked_at = check(TARGETS, &untraced) + check(TRACED_TARGETS, &traced);
    assert_eq!(report.len(), looked_at);
}

#[test]
fn the_library_is_small() {
    if let Some(image) = FATBIN {
        let (traced, hot) = (TRACED_FATBIN.unwrap(), HOT_FATBIN.unwrap());
        assert!(image.len() < 8 << 20 && traced.len() < 1 << 20, "{} bytes", image.len());
        assert!(hot.len() < 5 << 18, "{} bytes of hot kernels", hot.len());
        println!("traced kernels: {} bytes, hot ones: {} bytes", traced.len(), hot.len());
        println!(
            "{} kernels for {} targets: {} bytes",
            image::kernels().count(),
            TARGETS.len(),
            image.len()
        );
    }
    skipped();
}

/// A tool beside nvcc, or on the path.
fn tool(name: &str) -> Option<PathBuf> {
    let beside = Path::new(NVCC?).with_file_name(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = std::env::split_paths(&path).map(|f| f.join(name)).collect();
    candidates.insert(0, beside);
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in [".cuda", ".cuda-tools"] {
        let local = |above: &Path| above.join(folder).join("nvidia/cu13/bin").join(name);
        candidates.extend(crate_folder.ancestors().map(local));
    }
    candidates.into_iter().find(|candidate| candidate.is_file())
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Counts of accesses in a kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    wide_loads: u32,
    wide_stores: u32,
    /// What a switch reduces over all GPUs.
    reduced_loads: u32,
}

/// Counts of the accesses in each kernel.
fn accesses(assembly: &str) -> BTreeMap<String, Accesses> {
    let mut counts = BTreeMap::new();
    let mut kernel = String::new();
    for line in assembly.lines() {
        if let Some(name) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            kernel = name.to_owned();
        }
        let entry: &mut Accesses = counts.entry(kernel.clone()).or_default();
        let is_wide = line.contains("LDG.E.128 ") || line.contains("LDG.E.128.CONSTANT ");
        entry.wide_loads += u32::from(is_wide);
        entry.wide_stores += u32::from(line.contains("STG.E.128 "));
        entry.reduced_loads += u32::from(line.contains("LDGMC.E."));
    }
    counts
}

/// What an image has, as files.
struct Unpacked {
    folder: PathBuf,
    files: Vec<PathBuf>,
    nvdisasm: PathBuf,
}

impl Unpacked {
    /// None where the tools are missing, which is said.
    fn of(name: &str, image: &[u8]) -> Option<Unpacked> {
        let (Some(cuobjdump), Some(nvdisasm)) = (tool("cuobjdump"), tool("nvdisasm")) else {
            skip("machine code", &format!("cuobjdump and nvdisasm are not beside {NVCC:?}"));
            return None;
        };
        let folder = std::env::temp_dir().join(format!("oxccl-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("image.fatbin"), image).unwrap();
        let mut dump = Command::new(cuobjdump);
        run(dump
            .current_dir(&folder)
            .args(["--extract-elf", "all", "--extract-ptx", "all"])
            .arg("image.fatbin"));
        let entries = std::fs::read_dir(&folder).unwrap();
        let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        let is_ptx = |path: &&PathBuf| path.extension().is_some_and(|e| e == "ptx");
        assert_eq!(files.iter().filter(is_ptx).count(), 1);
        Some(Unpacked { folder, files, nvdisasm })
    }

    fn assembly(&self, target: u32) -> String {
        let is_target = |path: &&PathBuf| {
            path.extension().is_some_and(|extension| extension == "cubin")
                && path.to_string_lossy().contains(&format!("sm_{target}."))
        };
        let cubin = self.files.iter().find(is_target);
        let cubin = cubin.unwrap_or_else(|| panic!("no sm_{target}: {:?}", self.files));
        run(Command::new(&self.nvdisasm).arg(cubin))
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether kernels read the GPU's timer, and the multiprocessor's clock.
fn clocks(assembly: &str) -> [bool; 2] {
    ["SR_GLOBALTIMERLO", "SR_CLOCKLO"].map(|clock| assembly.contains(clock))
}

#[test]
fn traced_kernels_read_clocks() {
    if skipped() {
        return;
    }
    let Some(unpacked) = Unpacked::of("traced", TRACED_FATBIN.unwrap()) else { return };
    for target in TRACED_TARGETS {
        assert_eq!(clocks(&unpacked.assembly(*target)), [true; 2], "sm_{target}");
    }
}

#[test]
fn hot_loops_access_sixteen_bytes_and_switches_reduce() {
    if skipped() {
        return;
    }
    let Some(unpacked) = Unpacked::of("resources", FATBIN.unwrap()) else { return };
    // Most of the time goes to disassembly, a process each.
    let check = |target: u32| {
        let assembly = unpacked.assembly(target);
        assert_eq!(clocks(&assembly), [false; 2], "sm_{target} has nothing of traces");
        let counts = accesses(&assembly);
        for (data_type, fold) in image::kernels() {
            let name = image::kernel_name(data_type, fold);
            let found = counts.get(&name).copied().unwrap_or_default();
            // Eight of the copy, and two or four of each of two sources of the left fold.
            assert!(found.wide_loads >= 12, "{name} on sm_{target}: {found:?}");
            assert!(found.wide_stores >= 10, "{name} on sm_{target}: {found:?}");
            // Four packs, of as many words as the switch takes at a time.
            let is_here = |of: &Fold| image::kernel_name(data_type, *of) == name;
            let by_switch = |of: &Fold| target >= 90 && data_type.has_multicast(*of);
            let folds = Fold::ALL.into_iter().filter(is_here).filter(by_switch).count() as u32;
            let at_a_time = if data_type.is_integer() { data_type.len_bytes() } else { 16 };
            let at_a_time = if data_type == DataType::F64 { 8 } else { at_a_time };
            let reduced = 4 * 16 / at_a_time as u32;
            assert_eq!(found.reduced_loads, folds * reduced, "{name} on sm_{target}");
        }
    };
    std::thread::scope(|scope| {
        TARGETS.iter().for_each(|target| drop(scope.spawn(|| check(*target))))
    });
}

/// Says that a test was skipped, past the harness, which would keep it to itself.
fn skip(name: &str, why: &str) {
    use std::io::Write;
    // Without standard error nobody listens.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {why}");
}
