"""What benches/gpu/run.sh leaves: an archive with a folder for each stage, of rows.jsonl, stage.json and a log."""
import io
import json
import tarfile

from targets import targets


class Unreadable(SystemExit):
    """An archive that is none of run.sh's."""


def objects(text):
    """The objects of a text with one a line; what a stage that was ended has not written to its end is left out."""
    found = []
    for line in text.splitlines():
        try:
            one = json.loads(line)
        except ValueError:
            continue
        if isinstance(one, dict):
            found.append(one)
    return found


def files(path):
    """The files of an archive by their names."""
    try:
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes()), mode="r:gz") as archive:
            return {member.name.removeprefix("./"): archive.extractfile(member).read().decode(errors="replace")
                    for member in archive if member.isfile()}
    except (OSError, tarfile.TarError, EOFError) as error:
        raise Unreadable(f"{path} is no archive of run.sh: {error}") from None


def stages(path):
    """The bundle, and each stage with its rows."""
    found = files(path)
    if "bundle.json" not in found:
        raise Unreadable(f"{path} is no archive of run.sh: it names no bundle")
    made = []
    for name, text in found.items():
        folder, _, file = name.rpartition("/")
        if file == "stage.json":
            made.append(dict(json.loads(text), rows=objects(found.get(f"{folder}/rows.jsonl", ""))))
    return json.loads(found["bundle.json"]), made


def merged(paths):
    """What archives of run.sh have together, as it is kept: the newest bundle, and each stage with its bundle's commit. Of a stage that
    several archives of a commit have, what was begun last."""
    bundle, newest = None, {}
    for path in paths:
        of, made = stages(path)
        bundle = max(bundle or of, of, key=lambda one: one.get("built", ""))
        for stage in made:
            stage["commit"] = of["commit"]
            key = stage["stage"], stage["commit"]
            if key not in newest or stage["begun"] >= newest[key]["begun"]:
                newest[key] = stage
    ordered = sorted(newest.values(), key=lambda stage: stage["begun"])
    rows = [row for stage in ordered for row in stage.pop("rows")]
    machine = {"date": ordered[0]["begun"] if ordered else None, "quick": any(stage["quick"] for stage in ordered)}
    return {"bundle": bundle, "machine": machine, "stages": ordered, "wrong": sum(row.get("wrong") or 0 for row in rows),
            "targets": targets(rows), "rows": rows}
