use super::super::archive::Archive;
use super::super::sample::{Entry, Pickle, shard};
use super::super::tensor;
use super::*;

fn refused(pickle: &Pickle, word: &str) {
    let error = read(&pickle.0).unwrap_err().to_string();
    assert!(error.contains(word), "`{word}` is not in: {error}");
}

#[test]
fn plain_values_are_read() {
    let mut pickle = Pickle::new();
    pickle.op(b"(").text("a").whole(7).op(b"\x8a\x01\xff").op(b"G\x3f\xf8\0\0\0\0\0\0").op(b"N\x88t.");
    let values = read(&pickle.0).unwrap();
    let Node::Tuple(items) = values.get(values.top) else { panic!("a tuple") };
    let items: Vec<&Node<'_>> = items.iter().map(|&id| values.get(id)).collect();
    let expected = [Node::Text("a"), Node::Whole(7), Node::Whole(-1), Node::Float(1.5), Node::None, Node::Flag(true)];
    assert_eq!(items, expected.iter().collect::<Vec<_>>());
}

#[test]
fn nothing_but_tensors_is_named() {
    for (module, name) in [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "getattr"),
        ("subprocess", "Popen"),
        ("functools", "partial"),
        ("torch", "load"),
        ("torch.serialization", "load"),
        ("torch.hub", "load"),
        ("torch._utils", "_import_dotted_name"),
        ("torch.distributed.tensor.os", "system"),
        ("collections", "OrderedDict\x1b[31m"),
    ] {
        let mut classic = Pickle::new();
        classic.global(module, name).text("echo hi").op(b"\x85R.");
        refused(&classic, "nothing of it was run");
        let mut stack = Pickle::new();
        stack.text(module).text(name).op(b"\x93").text("echo hi").op(b"\x85R.");
        refused(&stack, "nothing of it was run");
    }
    let mut shown = Pickle::new();
    shown.global("os", "system");
    refused(&shown, "`os.system`");
}

#[test]
fn opcodes_that_run_or_fetch_are_refused() {
    // INST, OBJ, EXT1, EXT2, EXT4, PERSID, NEWOBJ_EX, REDUCE of a text, LONG4, NEXT_BUFFER.
    for bytes in [b"(ios\nsystem\n.".as_slice(), b"(o.", b"\x82\x01.", b"\x83\x01\0.", b"\x84\x01\0\0\0.", b"Pid\n."] {
        let mut pickle = Pickle::new();
        pickle.op(bytes);
        refused(&pickle, "never writes");
    }
    for bytes in [b"))}\x92.".as_slice(), b"\x97.", b"\x8b\xff\xff\xff\x7f."] {
        let mut pickle = Pickle::new();
        pickle.op(bytes);
        refused(&pickle, "never writes");
    }
    let mut called = Pickle::new();
    called.text("x").op(b")R.");
    refused(&called, "no name");
    let mut class = Pickle::new();
    class.global("torch.distributed.device_mesh", "DeviceMesh").op(b")R.");
    refused(&class, "never writes");
    let mut filled = Pickle::new();
    filled.global("collections", "OrderedDict").op(b"]\x85R.");
    refused(&filled, "arguments");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    for (bytes, word) in [
        (b".".as_slice(), "missing"),
        (b"0.", "missing"),
        (b"(0.", "missing"),
        (b"t.", "without a beginning"),
        (b"Na.", "missing"),
        (b"NNa.", "no list"),
        (b"NNNs.", "no dict"),
        (b"}(Nu.", "without a value"),
        (b"h\x05.", "not remembered"),
        (b"j\xff\xff\xff\xff.", "not remembered"),
        (b"q\0.", "missing"),
        (b"NNb.", "no object"),
        (b"X\xff\xff\xff\xff", "bytes"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "bytes"),
        (b"\x8a\xff", "a number of 255 bytes"),
        (b"\x80\x05", "protocol 5"),
        (b"X\x01\0\0\0\xff.", "not UTF-8"),
        (b"N", "an opcode"),
        (b"cos", "a name"),
    ] {
        let mut pickle = Pickle::new();
        pickle.op(bytes);
        refused(&pickle, word);
    }
    let mut long = Pickle::new();
    long.global(&"m".repeat(600), "n");
    refused(&long, "a name of more");
    let mut deep = Pickle::new();
    deep.op(&vec![b'('; DEEPEST + 1]);
    refused(&deep, "nested deeper");
}

#[test]
fn bombs_stay_small() {
    // A list that holds itself, a hundred times over; and doubling tuples, which are shared.
    let mut cyclic = Pickle::new();
    cyclic.op(b"]q\0");
    for _ in 0..100 {
        cyclic.op(b"h\0a");
    }
    cyclic.op(b".");
    assert_eq!(read(&cyclic.0).unwrap().nodes.len(), 1);
    let mut doubling = Pickle::new();
    doubling.op(b"Nq\0");
    for _ in 0..200 {
        doubling.op(b"h\0h\0\x86q\0");
    }
    doubling.op(b".");
    assert_eq!(read(&doubling.0).unwrap().nodes.len(), 201);
    // An index of four billion takes one place.
    let mut far = Pickle::new();
    far.op(b"Nr\xff\xff\xff\xffj\xff\xff\xff\xff.");
    assert!(read(&far.0).is_ok());
}

fn entries() -> Vec<Entry> {
    vec![
        Entry {
            name: "w",
            shape: vec![3, 2],
            values: vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0],
            of: Some((vec![5, 2], vec![2], vec![Some(0)])),
        },
        Entry { name: "b", shape: vec![2], values: vec![8.0, 9.0], of: None },
    ]
}

fn state(bytes: &[u8]) -> Result<usize, Problem> {
    let archive = Archive::read(bytes)?;
    let pickle = archive.pickle()?;
    let values = read(pickle.bytes)?;
    let entries = tensor::state_dict(&values, &archive, pickle.root)?;
    for (_, part) in &entries {
        assert_eq!(part.local.row_major().len() % 4, 0);
    }
    Ok(entries.len())
}

#[test]
fn a_state_dict_is_read() {
    let bytes = shard(&entries());
    let archive = Archive::read(&bytes).unwrap();
    let pickle = archive.pickle().unwrap();
    let values = read(pickle.bytes).unwrap();
    let parts = tensor::state_dict(&values, &archive, pickle.root).unwrap();
    assert_eq!(parts[0].0, "w");
    let of = parts[0].1.of.as_ref().unwrap();
    assert_eq!((of.shape.as_slice(), of.ranks.as_slice()), ([5, 2].as_slice(), [0, 1].as_slice()));
    assert_eq!(of.placements, [tensor::Placement::Shard(0)]);
    assert_eq!(parts[1].1.local.row_major().as_ref(), [8.0_f32, 9.0].map(f32::to_le_bytes).concat());
    assert!(parts[1].1.of.is_none());
}

#[test]
fn flipped_bytes_never_crash() {
    let whole = shard(&entries());
    assert_eq!(state(&whole), Ok(2));
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + next() % 3 {
            let at = next() as usize % whole.len();
            bytes[at] = if next() % 2 == 0 { next() as u8 } else { bytes[at] ^ 1 << (next() % 8) };
        }
        refused += usize::from(state(&bytes).is_err());
    }
    assert!(refused > 10_000, "only {refused} of 20000 were refused: are the right bytes flipped?");
    for cut in 0..whole.len() {
        assert!(state(&whole[..cut]).is_err(), "cut at {cut}");
    }
}
