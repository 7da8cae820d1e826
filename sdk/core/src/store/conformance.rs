//! One suite every store passes: each function panics with what is wrong.
//!
//! A suite works under a fresh random prefix and removes what it wrote, so it may run on a store
//! that is in use.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;

use super::{ETag, Error, Store};

/// Everything that every store promises.
///
/// # Panics
/// When the store breaks a promise.
pub async fn all(store: &dyn Store) {
    objects_come_back(store).await;
    bad_keys_are_refused(store).await;
    listings_are_sorted_and_by_prefix(store).await;
    files_travel_both_ways(store).await;
    logs_grow_and_are_cut(store).await;
    one_creator_wins(store).await;
    swaps_lose_nothing(store).await;
    readers_see_whole_objects(store).await;
}

fn fresh_prefix() -> String {
    format!("conformance-{:016x}", rand::random::<u64>())
}

async fn clear(store: &dyn Store, prefix: &str) {
    for object in store.list(prefix).await.expect("a listing for clearing up") {
        store.delete(&object.key).await.expect("a delete for clearing up");
    }
}

type Done<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

/// Drives all futures at once on this task and gives their results in order.
async fn together<T>(mut futures: Vec<Pin<Box<dyn Future<Output = T> + '_>>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let Poll::Ready(value) = future.as_mut().poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}

const ODD_NAMES: [&str; 12] = [
    "plain",
    "deep/er/still",
    "ünï/çødé 漢字.txt",
    "with space",
    "a%20b+c?d#e",
    ".hidden",
    "%2F",
    "two  spaces and\u{a0}another",
    "crab 🦀",
    // As two code points: a store that composes them gives back another key.
    "e\u{301}",
    "=&;:,@!$'()*~[]{}|^`<>\"",
    "back\\slash",
];

/// What takes more time and room: more keys than a page of a listing, files of several parts, long logs; not
/// [`one_creator_of_a_large_object_wins`], which some servers do not keep.
///
/// # Panics
/// When the store breaks a promise.
pub async fn at_scale(store: &dyn Store) {
    listings_have_no_last_page(store).await;
    large_objects_come_back(store).await;
    long_logs_grow_and_are_cut(store).await;
}

/// Put, get, replace, delete; tags follow content; unicode keys and empty objects.
///
/// # Panics
/// When the store breaks a promise.
pub async fn objects_come_back(store: &dyn Store) {
    let prefix = fresh_prefix();
    for name in ODD_NAMES {
        let key = format!("{prefix}/{name}");
        assert!(matches!(store.get(&key).await, Err(Error::NotFound { .. })), "{key} before it is written");
        let first = store.put(&key, Bytes::from_static(b"first")).await.expect("a put");
        let object = store.get(&key).await.expect("a get after a put");
        assert_eq!((object.bytes.as_ref(), &object.etag), (&b"first"[..], &first), "{key}");
        let second = store.put(&key, Bytes::new()).await.expect("a put over an object");
        assert_ne!(first, second, "{key}: other content, other tag");
        assert!(store.get(&key).await.expect("an empty object").bytes.is_empty(), "{key}");
        store.delete(&key).await.expect("a delete");
        assert!(matches!(store.get(&key).await, Err(Error::NotFound { .. })), "{key} after its delete");
        store.delete(&key).await.expect("a second delete is no error");
    }
    store.put(&format!("{prefix}/a/b"), Bytes::new()).await.expect("a put");
    let folder = store.get(&format!("{prefix}/a")).await;
    assert!(matches!(folder, Err(Error::NotFound { .. })), "a folder is no object: {folder:?}");
    store.delete(&format!("{prefix}/a")).await.expect("deleting what is no object is no error");
    store.get(&format!("{prefix}/a/b")).await.expect("and touches no other object");
    clear(store, &prefix).await;
}

/// No key escapes the store.
///
/// # Panics
/// When the store breaks a promise.
pub async fn bad_keys_are_refused(store: &dyn Store) {
    for key in ["", "/absolute", "a//b", "a/", "../up", "a/../b", "./a", "nul\0"] {
        let refused = [
            store.put(key, Bytes::new()).await.err(),
            store.create(key, Bytes::new()).await.err(),
            store.swap(key, Bytes::new(), &ETag("x".to_owned())).await.err(),
            store.write_at(key, 0, Bytes::new()).await.err(),
            store.get(key).await.err(),
            store.get_file(key, Path::new("/nowhere/never")).await.err(),
            store.delete(key).await.err(),
        ];
        for error in refused {
            assert!(matches!(error, Some(Error::Invalid { .. })), "{key:?} gave {error:?}");
        }
    }
    let escaping = store.list("../").await;
    assert!(matches!(escaping, Err(Error::Invalid { .. })), "a prefix outside the store gave {escaping:?}");
}

/// A prefix is text, not a folder; order is by bytes.
///
/// # Panics
/// When the store breaks a promise.
pub async fn listings_are_sorted_and_by_prefix(store: &dyn Store) {
    let prefix = fresh_prefix();
    for name in ["b", "a/2", "a/1", "a/10", "a-b", "ab/c", "é"] {
        store.put(&format!("{prefix}/{name}"), Bytes::copy_from_slice(name.as_bytes())).await.expect("a put");
    }
    let names = async |under: &str| -> Vec<String> {
        let found = store.list(&format!("{prefix}{under}")).await.expect("a listing");
        let cut = |key: &str| key[prefix.len() + 1..].to_owned();
        for object in &found {
            assert_eq!(object.size, cut(&object.key).len() as u64, "size of {}", object.key);
        }
        found.iter().map(|object| cut(&object.key)).collect()
    };
    assert_eq!(names("/").await, ["a-b", "a/1", "a/10", "a/2", "ab/c", "b", "é"]);
    assert_eq!(names("/a").await, ["a-b", "a/1", "a/10", "a/2", "ab/c"]);
    assert_eq!(names("/a/").await, ["a/1", "a/10", "a/2"]);
    assert_eq!(names("/a/1").await, ["a/1", "a/10"]);
    assert!(names("/nothing").await.is_empty());
    assert!(names("/nothing/below").await.is_empty());
    assert!(names("/b/below").await.is_empty());
    clear(store, &prefix).await;
}

/// `put_file` and `get_file` carry the same bytes as `put` and `get`.
///
/// # Panics
/// When the store breaks a promise.
pub async fn files_travel_both_ways(store: &dyn Store) {
    let prefix = fresh_prefix();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let content: Bytes = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    let source = folder.path().join("source");
    std::fs::write(&source, &content).expect("a source file");

    let key = format!("{prefix}/big");
    let etag = store.put_file(&key, &source).await.expect("a put from a file");
    let object = store.get(&key).await.expect("a get");
    assert!(object.bytes == content, "a file comes back as it was");
    assert_eq!(object.etag, etag);

    let target = folder.path().join("new/folder/target");
    store.get_file(&key, &target).await.expect("a get into a new folder");
    assert!(std::fs::read(&target).expect("the target") == content);
    store.put(&key, Bytes::from_static(b"short")).await.expect("a put");
    store.get_file(&key, &target).await.expect("a get over a file");
    assert_eq!(std::fs::read(&target).expect("the target"), b"short");

    let missing = store.get_file(&format!("{prefix}/missing"), &folder.path().join("missing")).await;
    assert!(matches!(missing, Err(Error::NotFound { .. })), "{missing:?}");
    assert!(!folder.path().join("missing").exists(), "a failed get leaves no file");
    clear(store, &prefix).await;
}

/// `write_at` appends, cuts, and refuses a hole; `get_from` reads on from where a reader was.
///
/// # Panics
/// When the store breaks a promise.
pub async fn logs_grow_and_are_cut(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = format!("{prefix}/logs/metrics.jsonl");
    let read = async || store.get(&key).await.expect("the log").bytes;
    let hole = store.write_at(&key, 1, Bytes::from_static(b"x")).await;
    assert!(matches!(hole, Err(Error::Invalid { .. })), "a hole in a missing log gave {hole:?}");
    assert!(store.list(&prefix).await.expect("a listing").is_empty(), "a refused write leaves nothing");

    store.write_at(&key, 0, Bytes::from_static(b"one\n")).await.expect("the first line");
    store.write_at(&key, 4, Bytes::from_static(b"two\n")).await.expect("the second line");
    assert_eq!(read().await, "one\ntwo\n");
    for (offset, rest) in [(0, Some("one\ntwo\n")), (4, Some("two\n")), (8, Some("")), (9, None), (u64::MAX, None)] {
        let found = store.get_from(&key, offset).await.expect("the log's rest");
        assert_eq!(found.as_deref(), rest.map(str::as_bytes), "from {offset}");
    }
    let missing = store.get_from(&format!("{prefix}/none"), 0).await;
    assert!(matches!(missing, Err(Error::NotFound { .. })), "a missing log gave {missing:?}");
    store.write_at(&key, 4, Bytes::from_static(b"2\n")).await.expect("a cut");
    assert_eq!(read().await, "one\n2\n");
    let hole = store.write_at(&key, 7, Bytes::from_static(b"x")).await;
    assert!(matches!(hole, Err(Error::Invalid { .. })), "a hole gave {hole:?}");
    assert_eq!(read().await, "one\n2\n");
    store.write_at(&key, 0, Bytes::new()).await.expect("a cut to nothing");
    assert!(read().await.is_empty());
    clear(store, &prefix).await;
}

/// Of many creators at once exactly one wins, and its object is whole.
///
/// # Panics
/// When the store breaks a promise.
pub async fn one_creator_wins(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = format!("{prefix}/lease");
    let creators = (0..16u8).map(|i| {
        let create = store.create(&key, Bytes::from(vec![i; 4096]));
        Box::pin(async move { (i, create.await) }) as Pin<Box<dyn Future<Output = _>>>
    });
    let mut winners = Vec::new();
    for (i, result) in together(creators.collect()).await {
        match result {
            Ok(etag) => winners.push((i, etag)),
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => panic!("creator {i}: {error:?}"),
        }
    }
    let [(winner, etag)] = &winners[..] else { panic!("{} creators won", winners.len()) };
    let object = store.get(&key).await.expect("the winner's object");
    assert_eq!(object.bytes, vec![*winner; 4096], "the winner's content stands");
    assert_eq!(object.etag, *etag);
    clear(store, &prefix).await;
}

/// Concurrent read-and-swap increments all count; a stale tag is refused.
///
/// # Panics
/// When the store breaks a promise.
pub async fn swaps_lose_nothing(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = format!("{prefix}/counter");
    let absent = store.swap(&key, Bytes::new(), &ETag("none".to_owned())).await;
    assert!(matches!(absent, Err(Error::Changed { .. })), "a swap of a missing object gave {absent:?}");

    let first = store.create(&key, Bytes::from_static(b"0")).await.expect("a create");
    let (tasks, rounds) = (6, 5);
    let increments = (0..tasks).map(|_| {
        Box::pin(async {
            let mut done = 0;
            while done < rounds {
                let object = store.get(&key).await.expect("the counter");
                let count: u64 = std::str::from_utf8(&object.bytes).expect("digits").parse().expect("a number");
                match store.swap(&key, Bytes::from((count + 1).to_string()), &object.etag).await {
                    Ok(_) => done += 1,
                    Err(Error::Changed { .. }) => {}
                    Err(error) => panic!("swap: {error:?}"),
                }
            }
        }) as Pin<Box<dyn Future<Output = ()>>>
    });
    together(increments.collect()).await;
    assert_eq!(store.get(&key).await.expect("the counter").bytes, (tasks * rounds).to_string());
    let stale = store.swap(&key, Bytes::new(), &first).await;
    assert!(matches!(stale, Err(Error::Changed { .. })), "a stale swap gave {stale:?}");
    clear(store, &prefix).await;
}

/// While one writer replaces an object, a reader sees one version or the other.
///
/// # Panics
/// When the store breaks a promise.
pub async fn readers_see_whole_objects(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = format!("{prefix}/object");
    let version = |i: u8| Bytes::from(vec![i; 200_000 + usize::from(i)]);
    store.put(&key, version(0)).await.expect("a put");
    let write = async {
        for i in 1..12 {
            store.put(&key, version(i)).await.expect("a put");
        }
    };
    let read = async {
        for _ in 0..24 {
            let seen = store.get(&key).await.expect("an object that is being replaced").bytes;
            assert!(seen == version(seen[0]), "half an object of {} bytes", seen.len());
            let listed = store.list(&prefix).await.expect("a listing");
            assert_eq!(listed.len(), 1, "a listing shows nothing half-written: {listed:?}");
        }
    };
    together(vec![Box::pin(write) as Pin<Box<dyn Future<Output = ()>>>, Box::pin(read)]).await;
    clear(store, &prefix).await;
}

/// A listing has all keys, in order, however many.
///
/// # Panics
/// When the store breaks a promise.
pub async fn listings_have_no_last_page(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = |i: usize| format!("{prefix}/{}/{i}", ["a", "b b", "é"][i % 3]);
    let all: Vec<usize> = (0..1050).collect();
    for some in all.chunks(35) {
        let puts = some.iter().map(|i| {
            let key = key(*i);
            Box::pin(async move { store.put(&key, Bytes::from_static(b"x")).await.map(drop) }) as Done<'_>
        });
        for put in together(puts.collect()).await {
            put.expect("a put");
        }
    }
    let mut expected: Vec<String> = all.iter().map(|i| key(*i)).collect();
    expected.sort_unstable();
    let found = store.list(&prefix).await.expect("a long listing");
    assert_eq!(found.len(), expected.len(), "a listing has every key once");
    assert!(found.iter().map(|object| &object.key).eq(&expected), "a long listing is in key order");
    for some in expected.chunks(35) {
        let deletes = some.iter().map(|key| Box::pin(store.delete(key)) as Done<'_>);
        for delete in together(deletes.collect()).await {
            delete.expect("a delete");
        }
    }
    assert!(store.list(&prefix).await.expect("a listing").is_empty(), "everything was deleted");
}

/// Files and objects of several parts, on the edges of parts, and creators and swappers of such.
///
/// # Panics
/// When the store breaks a promise.
pub async fn large_objects_come_back(store: &dyn Store) {
    let prefix = fresh_prefix();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let content = |size: usize, seed: u8| -> Bytes { (0..size).map(|i| (i % 251) as u8 ^ seed).collect() };
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    for size in [(8 << 20) - 1, 8 << 20, (8 << 20) + 1, 16 << 20, (37 << 20) + 5] {
        let (key, content) = (format!("{prefix}/large file+%41"), content(size, 0));
        std::fs::write(&source, &content).expect("a source file");
        let etag = store.put_file(&key, &source).await.expect("a put from a large file");
        store.get_file(&key, &target).await.expect("a get into a file");
        assert!(std::fs::read(&target).expect("the target") == content, "{size} bytes come back by file");
        let object = store.get(&key).await.expect("a get of a large object");
        assert!(object.bytes == content && object.etag == etag, "{size} bytes come back");
        let rest = store.get_from(&key, 7).await.expect("a get of a large rest").expect("a rest");
        assert!(rest == content.slice(7..), "{size} bytes come back from an offset");
        let listed = store.list(&prefix).await.expect("a listing");
        assert_eq!(listed.iter().map(|object| object.size).collect::<Vec<_>>(), [size as u64]);
    }
    let key = format!("{prefix}/created");
    let etag = store.create(&key, content(9 << 20, 1)).await.expect("a create of a large object");
    let again = store.create(&key, content(9 << 20, 2)).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })), "a second create of a large object gave {again:?}");
    let next = store.swap(&key, content(10 << 20, 9), &etag).await.expect("a swap of large objects");
    let stale = store.swap(&key, content(10 << 20, 10), &etag).await;
    assert!(matches!(stale, Err(Error::Changed { .. })), "a stale swap of a large object gave {stale:?}");
    assert_eq!(store.get(&key).await.expect("the swapped object").etag, next);
    clear(store, &prefix).await;
}

/// Of those that create an object of several parts at once, one wins. Nothing of a run's relies on it: its leases,
/// manifests and pointers are small, and large inputs are named by their content.
///
/// # Panics
/// When the store breaks a promise.
pub async fn one_creator_of_a_large_object_wins(store: &dyn Store) {
    let prefix = fresh_prefix();
    let content = |size: usize, seed: u8| -> Bytes { (0..size).map(|i| (i % 251) as u8 ^ seed).collect() };
    let key = format!("{prefix}/created");
    let creators = (1..4u8).map(|seed| {
        let create = store.create(&key, content(9 << 20, seed));
        Box::pin(async move { (seed, create.await) }) as Pin<Box<dyn Future<Output = _>>>
    });
    let mut winner = None;
    for (seed, created) in together(creators.collect()).await {
        match created {
            Ok(etag) => assert!(winner.replace((seed, etag)).is_none(), "two creators of a large object won"),
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => panic!("creator {seed} of a large object: {error:?}"),
        }
    }
    let (seed, etag) = winner.expect("a creator that won");
    let object = store.get(&key).await.expect("the winner's object");
    assert!(object.bytes == content(9 << 20, seed) && object.etag == etag, "the winner's content stands");
    clear(store, &prefix).await;
}

/// A log that outgrows what is rewritten whole, from one writer's memory and from another's.
///
/// # Panics
/// When the store breaks a promise.
pub async fn long_logs_grow_and_are_cut(store: &dyn Store) {
    let prefix = fresh_prefix();
    let key = format!("{prefix}/long log.jsonl");
    let block: Bytes = (0..1_500_000u32).map(|i| (i % 253) as u8).collect();
    let mut expected = Vec::new();
    for _ in 0..8 {
        store.write_at(&key, expected.len() as u64, block.clone()).await.expect("a long log that grows");
        expected.extend_from_slice(&block);
        let rest = store.get_from(&key, expected.len() as u64 - 3).await.expect("its end").expect("its end");
        assert!(rest == expected[expected.len() - 3..], "a long log's end");
    }
    assert!(store.get(&key).await.expect("a long log").bytes == expected, "a long log is what was written");
    for (offset, end) in [(11_000_000, &b"cut\n"[..]), (11_000_004, b"on\n"), (6_000_000, b""), (3_000_000, b"short\n")]
    {
        store.write_at(&key, offset as u64, Bytes::from_static(end)).await.expect("a cut of a long log");
        expected.truncate(offset);
        expected.extend_from_slice(end);
        assert!(store.get(&key).await.expect("a cut log").bytes == expected, "a long log is cut at {offset}");
    }
    let hole = store.write_at(&key, 4_000_000, Bytes::from_static(b"x")).await;
    assert!(matches!(hole, Err(Error::Invalid { .. })), "a hole in a long log gave {hole:?}");
    clear(store, &prefix).await;
}

/// A store with folders refuses a key that is the folder of another, and says so. (S3 allows it,
/// so this is not in [`all`].)
///
/// # Panics
/// When the store breaks a promise.
pub async fn keys_do_not_nest(store: &dyn Store) {
    let prefix = fresh_prefix();
    let (outer, inner) = (format!("{prefix}/a"), format!("{prefix}/a/b"));
    for (first, second) in [(&outer, &inner), (&inner, &outer)] {
        store.put(first, Bytes::new()).await.expect("a put");
        for error in [
            store.put(second, Bytes::new()).await.err(),
            store.create(second, Bytes::new()).await.err(),
            store.write_at(second, 0, Bytes::new()).await.err(),
        ] {
            let Some(error @ Error::Invalid { .. }) = error else { panic!("{second} beside {first} gave {error:?}") };
            assert!(error.to_string().contains("folder"), "{error}");
        }
        store.delete(first).await.expect("a delete");
        store.put(second, Bytes::new()).await.expect("free again once the other is gone");
        store.delete(second).await.expect("a delete");
    }
    clear(store, &prefix).await;
}
