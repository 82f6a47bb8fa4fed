//! Slurm's variables, and its compact lists of hosts and counts.

use super::{Environment, EnvironmentError as Error, LOOPBACK, Place, Variables, port};

pub(super) fn slurm(variables: &Variables) -> Result<Environment, Error> {
    // A batch script has a rank too (0), but no step.
    let Some(step) = variables.optional("SLURM_STEP_ID")? else {
        return Err(variables.missing("SLURM_STEP_ID", ": start the ranks with srun"));
    };
    let job = format!("srun {} {step}", variables.require("SLURM_JOB_ID")?);
    let world = first_set(variables, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
    let place = Place::read(variables, ["SLURM_PROCID", world])?;
    let place = local(variables, place)?;
    let host = if place.local_world == place.world {
        LOOPBACK.to_owned()
    } else {
        let list = first_set(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
        let hosts = variables.require(list)?;
        first_host(&hosts)
            .ok_or_else(|| variables.invalid(list, "a list of hosts such as node[003-010,12]"))?
    };
    let unique_id = variables.unique_id((host, port(&job)), &job)?;
    Ok(place.with(variables, unique_id))
}

fn first_set(variables: &Variables, first: &'static str, second: &'static str) -> &'static str {
    if variables.is_set(first) { first } else { second }
}

fn local(variables: &Variables, place: Place) -> Result<Place, Error> {
    let counts = first_set(variables, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
    let text = variables.require(counts)?;
    let node = match variables.is_set("SLURM_NODEID") {
        true => variables.number("SLURM_NODEID")?,
        false => 0,
    };
    let local_world = count_at(&text, node)
        .filter(|&count| count <= place.world)
        .ok_or_else(|| variables.invalid(counts, "ranks per machine such as 4(x2),3"))?;
    let local_rank = variables.number("SLURM_LOCALID")?;
    if local_rank >= local_world {
        let expected = format!("a rank below the {local_world} of {counts}={text}");
        return Err(variables.invalid("SLURM_LOCALID", expected));
    }
    Ok(Place { local_rank, local_world, ..place })
}

/// The first host of a list like `node[003-010,12],other`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(end) = rest.find(['[', ',']) {
        host.push_str(&rest[..end]);
        if rest[end..].starts_with(',') {
            rest = "";
            break;
        }
        let (ranges, after) = rest[end + 1..].split_once(']')?;
        let first = ranges.split([',', '-']).next()?;
        if first.is_empty() || !first.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        host.push_str(first);
        rest = after;
    }
    host.push_str(rest);
    let is_name = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
    (!host.is_empty() && host.chars().all(is_name)).then_some(host)
}

/// Entry `index` of a list like `4(x2),3`, which stands for 4, 4, 3.
fn count_at(list: &str, index: usize) -> Option<usize> {
    let mut before = 0;
    for part in list.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1),
        };
        before += times;
        if index < before {
            return count.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_of_a_list() {
        for (list, host) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[003-010,12]", "node003"),
            ("node[7,9-10],x", "node7"),
            ("rack[1-2]n[03-04].local", "rack1n03.local"),
            ("gpu-a[5]-ib", "gpu-a5-ib"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", "node[1-2", "node[]", "node[-3]", "node]", "no de", "[1;2]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }

    #[test]
    fn counts_are_repeated() {
        let counts = |list| (0..5).map(|i| count_at(list, i)).collect::<Vec<_>>();
        assert_eq!(counts("4(x2),3"), [Some(4), Some(4), Some(3), None, None]);
        assert_eq!(counts("1"), [Some(1), None, None, None, None]);
        for list in ["", "x", "4(x", "4(x2", "(x2)"] {
            assert_eq!(count_at(list, 0), None, "{list}");
        }
    }
}
