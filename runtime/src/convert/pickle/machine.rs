//! A pickle machine over plain values (protocols 2 to 4, the opcodes that `torch.save` writes).
//!
//! Values live in an arena and refer to each other by number, so shared and even cyclic values take
//! the memory of one. Every opcode makes at most one value and reads at least one byte: the work is
//! linear in the file, and the file is bounded.

use std::collections::HashMap;

use super::globals::Global;
use crate::convert::bytes::Cursor;
use crate::convert::error::{Problem, damaged, unsupported};

/// A checkpoint of 36,000 distributed tensors has a tenth of either.
const LARGEST_PICKLE: usize = 256 << 20;
const MOST_NODES: usize = 16 << 20;
/// Nested unfinished tuples, lists and dicts; PyTorch's own need six.
const DEEPEST: usize = 256;
/// Bytes of a whole number, at most. Hashes have eight.
const LONGEST_NUMBER: usize = 16;

/// A value's number in the arena.
pub(crate) type Id = u32;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node<'a> {
    /// `None`.
    None,
    /// A truth value.
    Flag(bool),
    /// A whole number.
    Whole(i128),
    /// A float.
    Float(f64),
    /// A text, or bytes that are one.
    Text(&'a str),
    /// A tuple.
    Tuple(Box<[Id]>),
    /// A list.
    List(Vec<Id>),
    /// A dict, or what was made of one; pairs in order.
    Dict(Vec<(Id, Id)>),
    /// A name on the list.
    Global(Global),
    /// A name called on a tuple of arguments, or a class made with it.
    Call {
        /// What is called.
        what: Global,
        /// Its arguments, a tuple.
        arguments: Id,
        /// Set on the result afterwards.
        state: Option<Id>,
    },
    /// A reference to a storage, by a tuple.
    Persistent(Id),
}

/// All values of a pickle.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    nodes: Vec<Node<'a>>,
    /// The one it stands for.
    pub(crate) top: Id,
}

impl<'a> Values<'a> {
    /// The value of a number.
    pub(crate) fn get(&self, id: Id) -> &Node<'a> {
        &self.nodes[id as usize]
    }
}

/// Reads a pickle.
///
/// # Errors
/// For a name that is not on the list, an opcode that `torch.save` does not write, and whatever
/// does not fit together.
pub(crate) fn read(bytes: &[u8]) -> Result<Values<'_>, Problem> {
    if bytes.len() > LARGEST_PICKLE {
        return unsupported(format!("a pickle of {} bytes; at most {LARGEST_PICKLE} are read", bytes.len()));
    }
    let mut machine = Machine {
        cursor: Cursor::new(bytes),
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    loop {
        if let Some(top) = machine.step()? {
            return Ok(Values { nodes: machine.nodes, top });
        }
    }
}

struct Machine<'a> {
    cursor: Cursor<'a>,
    nodes: Vec<Node<'a>>,
    stack: Vec<Id>,
    /// Where in the stack unfinished collections begin.
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

impl<'a> Machine<'a> {
    /// One opcode; the value of the pickle where it was the last.
    fn step(&mut self) -> Result<Option<Id>, Problem> {
        let at = self.cursor.position();
        let opcode = self.cursor.u8("an opcode")?;
        match opcode {
            b'.' => return self.pop().map(Some),
            0x80 => match self.cursor.u8("a protocol")? {
                2..=4 => {}
                other => return unsupported(format!("pickle protocol {other}; read are 2 to 4")),
            },
            // A frame's length says nothing new.
            0x95 => drop(self.cursor.take(8, "a frame")?),
            b'(' => {
                if self.marks.len() == DEEPEST {
                    return damaged(format!("values nested deeper than {DEEPEST} at byte {at}"));
                }
                self.marks.push(self.stack.len());
            }
            b'0' => drop(self.pop()?),
            b'N' => self.push(Node::None)?,
            0x88 => self.push(Node::Flag(true))?,
            0x89 => self.push(Node::Flag(false))?,
            b'J' => {
                let number = self.cursor.u32("a number")? as i32;
                self.push(Node::Whole(number.into()))?;
            }
            b'K' => {
                let number = self.cursor.u8("a number")?;
                self.push(Node::Whole(number.into()))?;
            }
            b'M' => {
                let number = self.cursor.u16("a number")?;
                self.push(Node::Whole(number.into()))?;
            }
            0x8a => self.long()?,
            b'G' => {
                let bits = self.cursor.u64("a float")?;
                self.push(Node::Float(f64::from_bits(bits.swap_bytes())))?;
            }
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'C' | b'B' => self.text(opcode)?,
            b')' => self.push(Node::Tuple(Box::default()))?,
            0x85..=0x87 => self.short_tuple(usize::from(opcode - 0x84))?,
            b't' => {
                let items = self.pop_to_mark()?;
                self.push(Node::Tuple(items.into()))?;
            }
            b']' => self.push(Node::List(Vec::new()))?,
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'a' | b'e' => self.append(opcode == b'e')?,
            b's' | b'u' => self.set_items(opcode == b'u')?,
            b'q' | b'r' | 0x94 => self.remember(opcode)?,
            b'h' | b'j' => {
                let index =
                    if opcode == b'h' { self.cursor.u8("an index")?.into() } else { self.cursor.u32("an index")? };
                let Some(&id) = self.memo.get(&index) else {
                    return damaged(format!("byte {at} asks for value {index}, which is not remembered"));
                };
                self.stack.push(id);
                self.check_stack()?;
            }
            b'c' | 0x93 => self.global(opcode)?,
            b'R' | 0x81 => self.call(opcode == b'R')?,
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))?;
            }
            other => {
                return unsupported(format!("pickle opcode {other:#04x} at byte {at}, which torch.save never writes"));
            }
        }
        Ok(None)
    }

    fn push(&mut self, node: Node<'a>) -> Result<(), Problem> {
        if self.nodes.len() >= MOST_NODES {
            return unsupported(format!("a pickle of more than {MOST_NODES} values"));
        }
        self.nodes.push(node);
        self.stack.push((self.nodes.len() - 1) as Id);
        self.check_stack()
    }

    fn check_stack(&self) -> Result<(), Problem> {
        if self.stack.len() > MOST_NODES { unsupported("a pickle with a stack of no bounds") } else { Ok(()) }
    }

    fn pop(&mut self) -> Result<Id, Problem> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.pop() {
            Some(id) if self.stack.len() >= floor => Ok(id),
            _ => damaged(format!("a value is missing before byte {}", self.cursor.position())),
        }
    }

    fn top(&mut self) -> Result<Id, Problem> {
        let id = self.pop()?;
        self.stack.push(id);
        Ok(id)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>, Problem> {
        match self.marks.pop() {
            Some(mark) => Ok(self.stack.split_off(mark)),
            None => damaged(format!("a collection without a beginning before byte {}", self.cursor.position())),
        }
    }

    fn long(&mut self) -> Result<(), Problem> {
        let length = usize::from(self.cursor.u8("a number's length")?);
        if length > LONGEST_NUMBER {
            return unsupported(format!("a number of {length} bytes before byte {}", self.cursor.position()));
        }
        let bytes = self.cursor.take(length as u64, "a number")?;
        let negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let mut whole = [if negative { 0xff } else { 0 }; LONGEST_NUMBER];
        whole[..length].copy_from_slice(bytes);
        self.push(Node::Whole(i128::from_le_bytes(whole)))
    }

    fn text(&mut self, opcode: u8) -> Result<(), Problem> {
        let what = "a text";
        let length = match opcode {
            0x8c | b'U' | b'C' => self.cursor.u8(what)?.into(),
            0x8d => self.cursor.u64(what)?,
            _ => self.cursor.u32(what)?.into(),
        };
        let bytes = self.cursor.take(length, what)?;
        let Ok(text) = std::str::from_utf8(bytes) else {
            return unsupported(format!("a text before byte {} that is not UTF-8", self.cursor.position()));
        };
        self.push(Node::Text(text))
    }

    fn short_tuple(&mut self, count: usize) -> Result<(), Problem> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<Id>, Problem>>()?;
        items.reverse();
        self.push(Node::Tuple(items.into()))
    }

    fn append(&mut self, many: bool) -> Result<(), Problem> {
        let items = if many { self.pop_to_mark()? } else { vec![self.pop()?] };
        let list = self.top()?;
        match &mut self.nodes[list as usize] {
            Node::List(list) => list.extend(items),
            _ => return damaged(format!("an item for what is no list before byte {}", self.cursor.position())),
        }
        Ok(())
    }

    fn set_items(&mut self, many: bool) -> Result<(), Problem> {
        let items = if many {
            self.pop_to_mark()?
        } else {
            let value = self.pop()?;
            vec![self.pop()?, value]
        };
        if !items.len().is_multiple_of(2) {
            return damaged(format!("a key without a value before byte {}", self.cursor.position()));
        }
        let dict = self.top()?;
        match &mut self.nodes[dict as usize] {
            Node::Dict(dict) => dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1]))),
            _ => return damaged(format!("a pair for what is no dict before byte {}", self.cursor.position())),
        }
        Ok(())
    }

    fn remember(&mut self, opcode: u8) -> Result<(), Problem> {
        let index = match opcode {
            b'q' => self.cursor.u8("an index")?.into(),
            b'r' => self.cursor.u32("an index")?,
            _ => self.memo.len() as u32,
        };
        let id = self.top()?;
        self.memo.insert(index, id);
        Ok(())
    }

    fn global(&mut self, opcode: u8) -> Result<(), Problem> {
        let (module, name) = if opcode == b'c' {
            (self.line()?, self.line()?)
        } else {
            let (name, module) = (self.pop()?, self.pop()?);
            match (&self.nodes[module as usize], &self.nodes[name as usize]) {
                (Node::Text(module), Node::Text(name)) => (*module, *name),
                _ => return damaged("a name that is no text"),
            }
        };
        match Global::of(module, name) {
            Some(global) => self.push(Node::Global(global)),
            None => unsupported(format!(
                "its pickle names `{}.{}`, which rebuilds no tensor; nothing of it was run",
                shown(module),
                shown(name)
            )),
        }
    }

    fn line(&mut self) -> Result<&'a str, Problem> {
        const LONGEST: u64 = 512;
        let mut ahead = self.cursor.clone();
        for length in 0..LONGEST {
            if ahead.u8("a name")? == b'\n' {
                let bytes = self.cursor.take(length + 1, "a name")?;
                let name = std::str::from_utf8(&bytes[..length as usize]);
                return name.or_else(|_| damaged("a name that is not UTF-8"));
            }
        }
        damaged(format!("a name of more than {LONGEST} bytes"))
    }

    fn call(&mut self, function: bool) -> Result<(), Problem> {
        let (arguments, what) = (self.pop()?, self.pop()?);
        let Node::Global(what) = self.nodes[what as usize] else {
            return unsupported(format!("a call of what is no name before byte {}", self.cursor.position()));
        };
        if !matches!(self.nodes[arguments as usize], Node::Tuple(_)) {
            return damaged(format!("arguments that are no tuple before byte {}", self.cursor.position()));
        }
        if !(if function { what.is_callable() } else { what.is_class() }) {
            return unsupported(format!("a call of {what:?}, which torch.save never writes"));
        }
        let made = match what {
            Global::OrderedDict if self.nodes[arguments as usize] != Node::Tuple(Box::default()) => {
                return unsupported("an OrderedDict made with arguments, which torch.save never writes");
            }
            Global::OrderedDict => Node::Dict(Vec::new()),
            what => Node::Call { what, arguments, state: None },
        };
        self.push(made)
    }

    fn build(&mut self) -> Result<(), Problem> {
        let (new, object) = (self.pop()?, self.top()?);
        match &mut self.nodes[object as usize] {
            Node::Call { state, .. } => *state = Some(new),
            // An OrderedDict's attributes, such as a state dict's `_metadata`, hold no tensor.
            Node::Dict(_) => {}
            _ => return damaged(format!("a state for what is no object before byte {}", self.cursor.position())),
        }
        Ok(())
    }
}

/// A name, as much as an error shows of it.
fn shown(name: &str) -> String {
    name.chars().take(64).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests;
