#!/usr/bin/env python3
"""Prints which test proves which promised behaviour of which tool, and fails on a gap.

    tests/behaviours/table.py [--gaps] [LIST.toml ...]

The lists beside this script name, for each tool, each behaviour that is promised of it and the tests that prove it. A test is
named by its function, or by `path/of/file.rs::function` where several have one name. An entry is

    "behaviour" = "a_test"
    "behaviour" = ["a_test", "another"]
    "behaviour" = { tests = ["a_test"], instead = "what is done in place of it, and why" }
    "behaviour" = { tests = [], gap = "what is missing" }

A gap is: an entry that says so, one without a test, one whose test is not in the sources, and a tool of the catalog that no list
has. `--gaps` prints those alone.
"""
import argparse
import json
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTED = ROOT / "gateway" / "tests" / "listed.json"
RUST_TEST = re.compile(r"#\[(?:tokio::)?test[^\]]*\]\s*(?:(?://[^\n]*|#\[[^\]]*\])\s*)*(?:pub )?(?:async )?fn (\w+)")
PYTHON_TEST = re.compile(r"^ *(?:async )?def (test_\w+)", re.M)


def tests():
    """Every test of the sources, by the name of its function: the files that have it."""
    found = {}
    for suffix, pattern in ((".rs", RUST_TEST), (".py", PYTHON_TEST)):
        for path in sorted(ROOT.rglob(f"*{suffix}")):
            place = path.relative_to(ROOT)
            if place.parts[0].startswith(".") or {"target", "node_modules"} & set(place.parts):
                continue
            for name in pattern.findall(path.read_text(encoding="utf-8")):
                found.setdefault(name, []).append(place.as_posix())
    return found


def entry(value):
    """Tests, remark and gap of an entry in any of its forms."""
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list):
        value = {"tests": value}
    unknown = set(value) - {"tests", "instead", "gap"}
    if unknown:
        raise SystemExit(f"an entry has {', '.join(sorted(unknown))}; known are tests, instead and gap")
    return value.get("tests", []), value.get("instead"), value.get("gap")


def problems_of(names, known):
    for name in names:
        place, _, function = name.rpartition("::")
        places = [found for found in known.get(function, []) if found.endswith(place)]
        if not places:
            yield f"there is no test {name}"
        elif len(set(places)) > 1:
            yield f"several files have a test {name}: {', '.join(sorted(set(places)))}"


def rows(lists, known):
    """Tool, behaviour, tests, remark, what is missing."""
    for path in lists:
        for tool, behaviours in tomllib.loads(path.read_text(encoding="utf-8")).items():
            for behaviour, value in behaviours.items():
                names, instead, gap = entry(value)
                missing = [gap] if gap else []
                missing += problems_of(names, known)
                if not names and not gap:
                    missing.append("no test")
                yield tool, behaviour, names, instead, "; ".join(missing)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("lists", nargs="*", type=pathlib.Path, help="lists to read; those beside this script by default")
    parser.add_argument("--gaps", action="store_true", help="print the gaps alone")
    arguments = parser.parse_args()
    own = sorted(pathlib.Path(__file__).parent.glob("*.toml"))
    table = list(rows(arguments.lists or own, tests()))
    for tool, behaviour, names, instead, missing in table:
        if arguments.gaps and not missing:
            continue
        print(f"{tool}: {behaviour}")
        for name in names:
            print(f"    {name}")
        if instead:
            print(f"    instead: {instead}")
        if missing:
            print(f"    GAP: {missing}")
    gaps = sum(bool(row[-1]) for row in table)
    listed = {tool["name"] for tool in json.loads(LISTED.read_text(encoding="utf-8"))}
    unlisted = sorted(listed - {row[0] for row in table}) if not arguments.lists else []
    for tool in unlisted:
        print(f"{tool}\n    GAP: no list has this tool")
    print(f"{len(table)} behaviours of {len({row[0] for row in table})} tools, {gaps + len(unlisted)} gaps")
    return 1 if gaps or unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
