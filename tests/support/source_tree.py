"""Writes a tree of source of many lines, the same one each time, to measure scans: `source_tree.py FOLDER LINES`.

Five languages in packages of fifty files; functions of a dozen lines that call each other and the functions of other files.
"""
import pathlib
import random
import sys

FORMS = {
    "rs": ("//! Module {n}.\nuse std::collections::BTreeMap;\n", "/// Does {f}.\npub fn {f}(input: &Input, limit: usize) -> Result<Output, Error> {{\n{body}    Ok(Output::default())\n}}\n\n",
           "    let value = {call}(input, limit.min(10))?;\n    if value.is_empty() {{\n        return Err(Error::new(\"nothing\", limit));\n    }}\n"),
    "py": ('"""Module {n}."""\nimport os\n\n', "def {f}(given, limit=10):\n    \"\"\"Does {f}.\"\"\"\n{body}    return given\n\n\n",
           "    value = {call}(given, min(limit, 10))\n    if not value:\n        raise ValueError(\"nothing\", limit)\n"),
    "ts": ("/** Module {n}. */\nimport {{ Input }} from './types';\n", "export async function {f}(given: Input, limit: number): Promise<Output> {{\n{body}  return {{ given, limit }};\n}}\n\n",
           "  const value = await {call}(given, Math.min(limit, 10));\n  if (!value.length) {{\n    throw new Error(`nothing ${{limit}}`);\n  }}\n"),
    "go": ("// Package m{p} does things.\npackage m{p}\n\n", "func {f}(given Input, limit int) (Output, error) {{\n{body}\treturn Output{{}}, nil\n}}\n\n",
           "\tif value, err := {call}(given, limit); err != nil {{\n\t\treturn value, err\n\t}}\n"),
    "java": ("/** Module {n}. */\npackage org.acme.m{p};\n\nclass C{n} {{\n", "    Output {f}(Input given, int limit) {{\n{body}        return new Output(given);\n    }}\n\n",
             "        var value = {call}(given, Math.min(limit, 10));\n        if (value.isEmpty()) {{\n            throw new IllegalStateException(\"nothing\");\n        }}\n"),
}


def main(folder, lines):
    folder, left, n = pathlib.Path(folder), lines, 0
    chance = random.Random(20)
    ends = list(FORMS)
    while left > 0:
        package, end = n // 50, ends[(n // 50) % len(ends)]
        head, form, call = FORMS[end]
        text = head.format(n=n, p=package)
        for f in range(chance.randint(4, 16)):
            body = "".join(call.format(call=f"work_{chance.randrange(max(0, n - 200), n + 1)}_{chance.randrange(8)}") for _ in range(chance.randint(1, 4)))
            text += form.format(f=f"work_{n}_{f}", body=body)
        text += "}\n" if end == "java" else ""
        path = folder / f"pkg{package}" / ("src" if end != "go" else "m") / f"file{n}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if n % 50 == 0:
            (folder / f"pkg{package}" / {"rs": "Cargo.toml", "py": "setup.py", "ts": "package.json", "go": "go.mod", "java": "pom.xml"}[end]).write_text("")
        path.write_text(text)
        left -= text.count("\n")
        n += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
