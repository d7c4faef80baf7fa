"""Writes the declarations of the crate kvcache-sys from the description of the interface."""

import re

import ctype

FOLDER = "bindings/rust/kvcache-sys/src/generated/"
SCALARS = {"void": "c_void", "char": "c_char", "int8_t": "i8", "uint8_t": "u8", "int16_t": "i16",
           "uint16_t": "u16", "int32_t": "i32", "uint32_t": "u32", "int64_t": "i64",
           "uint64_t": "u64", "size_t": "usize", "float": "f32", "double": "f64"}
# Words of Rust that may be names in C.
KEYWORDS = {"as", "box", "fn", "impl", "in", "loop", "match", "mod", "move", "ref", "self", "type",
            "use"}
WIDTH = 100
HANDLE = """#[repr(C)]
#[derive(Debug)]
pub struct {name} {{
    _opaque: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}}
"""


def name_of(name):
    return name + "_" if name in KEYWORDS else name


def function_type(kind):
    """`unsafe extern "C" fn(...)` in pieces, for `joined`."""
    parameters = [f"{name_of(one['name'])}: {type_of(one['type'])}" for one in kind["parameters"]]
    returns = "" if kind["returns"] == "void" else f" -> {type_of(kind['returns'])}"
    return parameters, returns


def type_of(kind):
    """A type of C as Rust writes it, in one line."""
    if not isinstance(kind, str):
        parameters, returns = function_type(kind)
        return f"Option<unsafe extern \"C\" fn({', '.join(parameters)}){returns}>"
    element, count = ctype.array(kind)
    if element is not kind:
        return f"[{type_of(element)}; {count}]"
    words = re.findall(r"\w+|\*", kind)
    base = [word for word in words[:words.index("*") if "*" in words else len(words)]
            if word not in ("const", "struct")][0]
    result, constant = SCALARS.get(base, base), words[0] == "const"
    for at, word in enumerate(words):
        if word == "*":
            result = f"*{'const' if constant else 'mut'} {result}"
            constant = words[at + 1:at + 2] == ["const"]
    return result


def joined(indent, before, parameters, after):
    """A list of parameters in one line where it fits, else with a line for each."""
    line = f"{indent}{before}({', '.join(parameters)}){after}"
    if len(line) <= WIDTH:
        return line
    inside = "".join(f"{indent}    {one},\n" for one in parameters)
    return f"{indent}{before}(\n{inside}{indent}){after}"


def markdown(text):
    """Words of a comment, so that rustdoc shows them as they are."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\\[\]<*])", r"\\\1", part)
                   for part in parts)


def wrapped(text, indent):
    lines, line = [], ""
    for word in text.split():
        if line and len(indent) + len("/// ") + len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    # A line that would begin a list, a quotation or a heading.
    lines = [re.sub(r"^([>#+-]|\d+(?=[.)]))", r"\\\1", one) for one in lines + [line]]
    return "".join(f"{indent}/// {one}\n" for one in lines)


def sentence(text):
    """`text` with a capital letter, unless it begins with a name, and a full stop."""
    text = re.sub(r"^[a-z]+(?=[ ,:;]|$)", lambda word: word.group().capitalize(), text)
    return text if re.search(r"[.!?:)]$", text) else text + "."


def short(doc, indent=""):
    """A comment as one paragraph."""
    text = " ".join(" ".join(doc).split())
    return wrapped(markdown(sentence(text)), indent) if text else ""


def long(doc, indent=""):
    """The first sentence of a comment as a paragraph, and the rest in the header's lines."""
    text = "\n".join(doc)
    if len(doc) < 2:
        return short(doc, indent)
    match = re.match(r"(.+?\.)\s+", text, re.DOTALL)
    first, rest = (match.group(1), text[match.end():]) if match else (doc[0], "\n".join(doc[1:]))
    lines = ["```text", *rest.split("\n"), "```"]
    shown = "".join(f"{indent}/// {line}".rstrip() + "\n" for line in lines)
    return short([first], indent) + f"{indent}///\n" + shown


def field(one):
    doc = short(one.get("doc", []), "    ")
    name = f"    pub {name_of(one['name'])}:"
    line = f"{name} {type_of(one['type'])},\n"
    if len(line) <= WIDTH + 1 or isinstance(one["type"], str):
        return doc + line
    parameters, returns = function_type(one["type"])
    code = joined("        ", 'unsafe extern "C" fn', parameters, returns + ",")
    return f"{doc}{name} Option<\n{code}\n    >,\n"


def struct(one):
    fields = "".join(field(member) for member in one["fields"])
    return (long(one.get("doc", [])) + "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\n"
            f"pub struct {one['name']} {{\n{fields}}}\n")


def enum(one):
    values = "".join(short(value.get("doc", []), "        ")
                     + f"        {value['name']} = {value['value']},\n" for value in one["values"])
    return (f"kinds! {{\n{long(one.get('doc', []), '    ')}    {one['name']}: "
            f"{SCALARS[one['type']]} {{\n{values}    }}\n}}\n")


def constants(one, structs):
    """Bits have the type of the field that their comment names; counts are usize."""
    doc = " ".join(one.get("doc", []))
    field_of = re.search(r"\b(kvc_\w+)\.(\w+)", doc)
    lines = []
    for value in one["values"]:
        kind = SCALARS[structs[field_of.group(1)][field_of.group(2)]] if field_of else "u64"
        if re.search(r"^KVC_MAX_|_BYTES$", value["name"]):
            kind = "usize"
        if value["value"] < 0:
            kind = "i32"
        text = value.get("doc") or one.get("doc", [])
        lines.append(short(text) + f"pub const {value['name']}: {kind} = {value['value']};\n")
    return "".join(lines)


def alias(one):
    return short(one.get("doc", [])) + f"pub type {one['name']} = {type_of(one['type'])};\n"


def callback(one):
    parameters, returns = function_type(one["type"])
    code = joined("    ", 'unsafe extern "C" fn', parameters, returns + ",")
    return short(one.get("doc", [])) + f"pub type {one['name']} = Option<\n{code}\n>;\n"


def types(description):
    structs = {one["name"]: {member["name"]: member["type"] for member in one["fields"]}
               for one in description["declarations"] if one["kind"] == "struct"}
    major, minor = description["abi_version"]
    parts = ["use crate::*;\nuse core::ffi::{c_char, c_void};\n"
             "use core::marker::{PhantomData, PhantomPinned};\n",
             "/// Version of the ABI that these declarations follow.\n"
             f"pub const KVC_ABI_VERSION_MAJOR: u32 = {major};\n"
             f"pub const KVC_ABI_VERSION_MINOR: u32 = {minor};\n"
             "pub const KVC_ABI_VERSION: u32 = KVC_ABI_VERSION_MAJOR << 16 | KVC_ABI_VERSION_MINOR;"
             "\n"]
    for one in description["declarations"]:
        if one["kind"] == "handle":
            parts.append(short(one.get("doc", [])) + HANDLE.format(name=one["name"]))
        elif one["kind"] == "struct":
            parts.append(struct(one))
        elif one["kind"] == "enum":
            parts.append(enum(one))
        elif one["kind"] == "constants":
            parts.append(constants(one, structs))
        elif one["kind"] == "alias":
            parts.append(alias(one))
        elif one["kind"] == "callback":
            parts.append(callback(one))
    sized = [name for name, members in structs.items() if next(iter(members)) == "struct_size"]
    lines = "".join(f"    {name}\n" for name in sized)
    return "\n".join(parts + [f"sized_structs! {{\n{lines}}}\n"])


def functions(description):
    parts = []
    for one in description["declarations"]:
        if one["kind"] == "function":
            parameters, returns = function_type(one)
            code = joined("    ", f"pub fn {one['name']}", parameters, returns + ";")
            parts.append(f"{long(one.get('doc', []), '    ')}{code}\n")
    return ("use crate::*;\nuse core::ffi::{c_char, c_void};\n\nextern \"C\" {\n"
            + "".join(parts) + "}\n")


def slot(member, function):
    """A member of the function table: never NULL in a table that the library hands out."""
    parameters, returns = function_type(function)
    code = joined("    ", f'pub {member}: unsafe extern "C" fn', parameters, returns + ",")
    return f"    /// [`{function['name']}`]\n{code}\n"


def table(slots):
    lines = "".join(slot(member, function) for member, function in slots)
    return f"""use crate::*;
use core::ffi::{{c_char, c_void}};

/// The function table, for programs that load the library at run time. It is append-only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvc_api {{
    pub struct_size: usize,
    /// Version of the library's ABI.
    pub abi_version: u32,
    pub reserved: u32,
{lines}}}
"""


def layout(layouts):
    """One line per struct, with offsets, for the macro in lib.rs."""
    entries = []
    for name, one in layouts.items():
        line, lines = "       ", []
        for member, (offset, _) in one["fields"].items():
            part = f" {name_of(member)} @ {offset},"
            if len(line) + len(part) > WIDTH:
                lines.append(line)
                line = "       "
            line += part
        text = "\n".join(lines + [line])
        entries.append(f"    {name} = {one['size']} {{\n{text}\n    }}\n")
    return "use crate::*;\n\nlayouts! {\n" + "".join(entries) + "}\n"


def files(description, slots, layouts):
    """{path: content}"""
    module = ("mod functions;\n#[doc(hidden)]\npub mod layout;\nmod table;\nmod types;\n\n"
              "pub use functions::*;\npub use table::*;\npub use types::*;\n")
    parts = {"mod.rs": ("Declarations of kvcache.h.", module),
             "types.rs": ("Types and constants of kvcache.h.", types(description)),
             "functions.rs": ("Functions of kvcache.h.", functions(description)),
             "table.rs": ("The function table.", table(slots)),
             "layout.rs": ("Sizes and offsets on 64-bit machines.", layout(layouts))}
    return {FOLDER + name: f"// {{note}}\n//! {doc}\n\n{text}"
            for name, (doc, text) in parts.items()}
