//! `docs/configuration.md`, as the settings give it.

use super::Config;
use super::settings::{ADVANCED, SETTINGS};
use super::table::{Ranks, Setting};
use std::path::Path;

/// What stands before the settings.
const BEGIN: &str = "\
<!-- Made from src/config/settings.rs: OXCCL_WRITE_DOCS=1 cargo test -p oxccl --lib config::document -->

# Configuration

`Config::from_env` reads these variables once; `Communicator::local` and `Communicator::from_env` call it. `Config` has the
same settings as fields, and `Config::advanced` those that few users change. A value that cannot be is an `Error::Config`
that names its variable.

Most settings must be the same on all ranks. The ranks compare those when they start, and one that differs is an error.
Variables by which launchers tell a rank its place are in `docs/launching.md`.
";

/// What stands behind them.
const END: &str = "
## Of other programs

- `CUDA_MODULE_LOADING`: the CUDA driver reads it. The command sets it to `EAGER` where it is not set, but not for programs
  that `oxccl run` starts.
- For the build: `CXX`, `NVCC` (`none`: no GPU kernels), `CUDA_HOME`, `CUDA_PATH`, and `OXCCL_REQUIRE_NVCC=1` (a missing nvcc
  is an error). `OXCCL_GPU_TARGETS=90` compiles for compute capability 9.0 alone, which is done sooner; several are
  separated by commas. There are 80, 90, 100 and 120. `OXCCL_BUILD_CACHE` is a folder for what these compilers make,
  instead of one in the target folder; the scripts in `tools/` name one in the user's cache.
";

fn document() -> String {
    let section = |title: &str, within: &str, settings: &[Setting]| {
        let told: String = settings.iter().map(|setting| setting.told(within)).collect();
        format!("\n## {title}\n{told}")
    };
    let settings = section("Settings", "Config", SETTINGS);
    let advanced = section("Advanced settings", "Advanced", ADVANCED);
    format!("{BEGIN}{settings}{advanced}{END}")
}

impl Setting {
    fn told(&self, within: &str) -> String {
        let variables: Vec<_> =
            self.variables.iter().map(|variable| format!("`{}`", variable.name)).collect();
        let name = match variables.is_empty() {
            true => format!("`{within}::{}`", self.field),
            false => variables.join(", "),
        };
        let text = self.text.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n");
        let field = format!("- field: `{within}::{}`\n", self.field);
        let accepted: Vec<_> = self.variables.iter().map(|variable| variable.accepts).collect();
        let accepts = match accepted.is_empty() {
            true => "- no variable\n".to_owned(),
            false => format!("- takes: {}\n", accepted.join("; ")),
        };
        let ranks = match self.ranks {
            Ranks::MayDiffer => "- ranks may differ\n",
            Ranks::Alike => "- the same on all ranks\n",
            Ranks::AlikeIn(_) => "- of the same kind on all ranks\n",
        };
        let default = format!("- default: {}\n", self.default());
        format!("\n### {name}\n\n{text}\n\n{accepts}{default}{ranks}{field}")
    }

    fn default(&self) -> String {
        if !self.unset.is_empty() {
            return self.unset.to_owned();
        }
        let [host, gpu] = [Config::default(), Config::cuda()].map(|config| self.amount(&config));
        let differs = host != gpu && self.field != "device";
        if differs { format!("{host}; on a GPU {gpu}") } else { host }
    }

    /// Large numbers of bytes in their units, others with their digits in groups.
    fn amount(&self, config: &Config) -> String {
        let shown = (self.shown)(config);
        let Ok(number) = shown.parse::<usize>() else { return shown };
        let is_bytes = self.field.ends_with("_bytes");
        for (unit, bytes) in [("GiB", 1 << 30), ("MiB", 1 << 20)] {
            if is_bytes && number >= bytes && number.is_multiple_of(bytes) {
                return format!("{} {unit}", number / bytes);
            }
        }
        let group = |(at, digit): (usize, char)| {
            let comma = at > 0 && (shown.len() - at).is_multiple_of(3);
            if comma { format!(",{digit}") } else { digit.to_string() }
        };
        shown.chars().enumerate().map(group).collect()
    }
}

#[test]
fn the_documentation_is_that_of_the_settings() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    if std::env::var_os("OXCCL_WRITE_DOCS").is_some() {
        std::fs::write(&path, document()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == document(),
        "docs/configuration.md is not what src/config/settings.rs gives: write it with \
         `OXCCL_WRITE_DOCS=1 cargo test -p oxccl --lib config::document`"
    );
}
