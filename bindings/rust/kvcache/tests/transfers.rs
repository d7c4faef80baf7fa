//! Transfers: what arrives, who waits, how they end, and what is refused.

mod common;

use common::{config, step};
use kvcache::{
    Batch, Cache, Config, DType, Layer, OnDone, ReceiveOptions, Result, SendOptions, Status, TensorRef,
    Transfer, TransferState, Transport, TransportOptions,
};
use std::sync::mpsc::channel;
use std::time::Duration;

const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn transport() -> Transport {
    Transport::open(&TransportOptions::default()).unwrap()
}

fn manual() -> Transport {
    let mut options = TransportOptions::default();
    options.manual_progress = true;
    Transport::open(&options).unwrap()
}

fn of(layer: &Layer, page_size: i32) -> Cache {
    let layers = vec![layer.clone(), layer.clone().window(20)];
    Cache::with_config(&Config::new(layers).page_size(page_size).num_pages(256).num_threads(1)).unwrap()
}

/// Appends tokens whose elements are all different.
fn grow(cache: &mut Cache, seq: i64, tokens: usize, heads: usize, dim: usize, ids: &[i32]) {
    let rows: Vec<f32> = (0..tokens * heads * dim).map(|i| i as f32 * 0.25 - 9.0).collect();
    let k = TensorRef::new(&rows, &[tokens, heads, dim]).unwrap();
    let (seqs, lengths) = ([seq], [tokens as i64]);
    let mut batch = Batch::new(&seqs, &lengths);
    if !ids.is_empty() {
        batch = batch.tokens(ids);
    }
    let forward = cache.begin(&batch).unwrap();
    for layer in 0..2 {
        forward.kv_append(layer, (&k, &k)).unwrap();
    }
    forward.end().unwrap();
}

/// One sequence to another cache, waited for on both sides.
fn send(from: &mut Cache, to: &mut Cache, transport: &Transport, options: &ReceiveOptions) -> Result<()> {
    let arriving = to.receive(transport, options)?;
    let leaving =
        from.send(transport, options.seq, options.begin, &arriving.ticket()?, &SendOptions::default())?;
    from.wait_transfer(&leaving, LONG)?;
    to.wait_transfer(&arriving, LONG)
}

#[test]
fn what_arrives_is_what_was_sent() {
    let transport = transport();
    for (heads, dim) in [(1, 80), (3, 65)] {
        let layer = Layer::attention(heads, heads, dim).dtype(DType::F32);
        for (page_size, length) in [(1, 1), (1, 7), (16, 15), (16, 16), (16, 17), (48, 97)] {
            let (mut from, mut to) = (of(&layer, page_size), of(&layer, page_size));
            from.add(4).unwrap();
            grow(&mut from, 4, length, heads as usize, dim as usize, &[]);
            send(&mut from, &mut to, &transport, &ReceiveOptions::new(4, length as i64)).unwrap();
            assert!(from.save(&[4], None).unwrap() == to.save(&[4], None).unwrap());
            // Both go on, and the pages of the sender are its own again.
            grow(&mut from, 4, 3, heads as usize, dim as usize, &[]);
            grow(&mut to, 4, 3, heads as usize, dim as usize, &[]);
            assert!(from.save(&[4], None).unwrap() == to.save(&[4], None).unwrap());
            from.check().unwrap();
            to.check().unwrap();
        }
    }
}

#[test]
fn rows_leave_as_they_are_computed_and_fit_pages_of_another_size() {
    let layer = Layer::attention(1, 1, 80).dtype(DType::F32);
    let mut options = SendOptions::default();
    options.as_computed = true;
    for page_size in [16, 48] {
        let (mut from, mut to, transport) = (of(&layer, 16), of(&layer, page_size), transport());
        from.add(4).unwrap();
        let arriving = to.receive(&transport, &ReceiveOptions::new(4, 60)).unwrap();
        let leaving = from.send(&transport, 4, 0, &arriving.ticket().unwrap(), &options).unwrap();
        for tokens in [7, 50, 3] {
            grow(&mut from, 4, tokens, 1, 80, &[]);
        }
        from.wait_transfer(&leaving, LONG).unwrap();
        to.wait_transfer(&arriving, LONG).unwrap();
        assert_eq!(to.length(4).unwrap(), 60);
        if page_size == 16 {
            assert!(from.save(&[4], None).unwrap() == to.save(&[4], None).unwrap());
        } else {
            // Back again they are the sender's bit for bit.
            let mut back = of(&layer, 16);
            send(&mut to, &mut back, &transport, &ReceiveOptions::new(4, 60)).unwrap();
            assert!(from.save(&[4], None).unwrap() == back.save(&[4], None).unwrap());
        }
        // A sequence that is not what it was ends it.
        let arriving = to.receive(&transport, &ReceiveOptions::new(5, 90)).unwrap();
        let leaving = from.send(&transport, 4, 0, &arriving.ticket().unwrap(), &options).unwrap();
        from.remove(4).unwrap();
        from.trim().unwrap();
        assert_eq!(from.wait_transfer(&leaving, LONG).unwrap_err().status(), Status::Cancelled);
        assert_eq!(to.wait_transfer(&arriving, LONG).unwrap_err().status(), Status::Cancelled);
        to.check().unwrap();
    }
}

#[test]
fn two_ranks_send_their_heads_to_one_and_get_them_back() {
    let transport = transport();
    let heads = |count: i32| of(&Layer::attention(count, count, 8).dtype(DType::F32), 16);
    let (mut first, mut second, mut whole) = (heads(1), heads(1), heads(2));
    for cache in [&mut first, &mut second] {
        cache.add(4).unwrap();
        grow(cache, 4, 30, 1, 8, &[]);
    }
    let mut options = ReceiveOptions::new(4, 30);
    options.sender_tp_size = 2;
    let arriving = whole.receive(&transport, &options).unwrap();
    let ticket = arriving.ticket().unwrap();
    for (rank, cache) in [(0, &mut first), (1, &mut second)] {
        let mut options = SendOptions::default();
        let error = cache.send(&transport, 4, 0, &ticket, &options).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
        (options.tp_rank, options.tp_size) = (rank, 2);
        let leaving = cache.send(&transport, 4, 0, &ticket, &options).unwrap();
        cache.wait_transfer(&leaving, LONG).unwrap();
    }
    whole.wait_transfer(&arriving, LONG).unwrap();
    let mut again = heads(1);
    let mut options = ReceiveOptions::new(4, 30);
    (options.tp_rank, options.tp_size, options.sender_tp_size) = (1, 2, 1);
    send(&mut whole, &mut again, &transport, &options).unwrap();
    assert!(again.save(&[4], None).unwrap() == second.save(&[4], None).unwrap());
    whole.check().unwrap();
}

#[test]
fn tokens_that_the_receiver_has_do_not_travel() {
    let (mut from, mut to, transport) = (small(), small(), transport());
    let ids: Vec<i32> = (0..12).collect();
    filled(&mut from, 1, &ids);
    filled(&mut to, 1, &ids[..8]);
    let mut options = ReceiveOptions::new(1, 4);
    (options.begin, options.publish) = (8, true);
    send(&mut from, &mut to, &transport, &options).unwrap();
    assert_eq!((to.length(1).unwrap(), to.seq_info(1).unwrap().known_tokens), (12, 12));
    assert!(from.save(&[1], None).unwrap() == to.save(&[1], None).unwrap());
    let query = kvcache::Query::new(&ids).all_tokens();
    assert_eq!(to.prefix_match(&query).unwrap(), 12);
    // Without publish its tokens are unknown.
    let mut third = small();
    send(&mut from, &mut third, &transport, &ReceiveOptions::new(1, 12)).unwrap();
    assert_eq!((third.length(1).unwrap(), third.seq_info(1).unwrap().known_tokens), (12, 0));
    assert_eq!(third.prefix_match(&query).unwrap(), 0);
    assert_eq!(step(&mut third, &[1], &[1], &[5.0]).unwrap(), step(&mut to, &[1], &[1], &[5.0]).unwrap());
    let stats = transport.stats().unwrap();
    assert_eq!((stats.transfers_open, stats.transfers_done, stats.transfers_failed), (0, 4, 0));
    assert!(stats.bytes_sent > 0 && stats.bytes_received > 0, "{stats:?}");
}

fn small() -> Cache {
    Cache::with_config(&config()).unwrap()
}

/// A sequence of these tokens, with a number per token.
fn filled(cache: &mut Cache, seq: i64, ids: &[i32]) {
    cache.add(seq).unwrap();
    let rows: Vec<f32> = ids.iter().flat_map(|id| [*id as f32; 4]).collect();
    let k = TensorRef::new(&rows, &[ids.len(), 1, 4]).unwrap();
    let forward = cache.begin(&Batch::new(&[seq], &[ids.len() as i64]).tokens(ids)).unwrap();
    forward.kv_append(0, (&k, &k)).unwrap();
    forward.end().unwrap();
}

#[test]
fn caches_lie_on_threads_of_their_own() {
    let (tickets, ticket) = std::sync::mpsc::channel::<Vec<u8>>();
    let prefill = std::thread::spawn(move || {
        let (mut cache, transport) = (small(), transport());
        filled(&mut cache, 7, &[1, 2, 3, 4, 5]);
        let leaving = cache.send(&transport, 7, 0, &ticket.recv().unwrap(), &SendOptions::default()).unwrap();
        cache.remove(7).unwrap();
        cache.wait_transfer(&leaving, LONG).unwrap();
        let info = leaving.info().unwrap();
        assert_eq!((info.state, info.status, info.is_receiving), (TransferState::Done, None, false));
        assert!(info.bytes_done > 0 && info.bytes_done == info.bytes_total, "{info:?}");
        assert_eq!(leaving.ticket().unwrap_err().status(), Status::InvalidState);
    });
    let (mut cache, transport) = (small(), transport());
    let arriving = cache.receive(&transport, &ReceiveOptions::new(7, 5)).unwrap();
    let info = arriving.info().unwrap();
    assert_eq!((info.state, info.is_receiving), (TransferState::Waiting, true));
    assert_eq!(cache.pop(7, 1).unwrap_err().status(), Status::Busy);
    assert_eq!(cache.clear().unwrap_err().status(), Status::Busy);
    tickets.send(arriving.ticket().unwrap()).unwrap();
    // A fence leaves the cache to others meanwhile.
    let fence = arriving.fence().unwrap();
    let waiting = std::thread::spawn(move || fence.wait());
    cache.add(8).unwrap();
    assert_eq!(step(&mut cache, &[8], &[2], &[1.0, 3.0]).unwrap(), [1.0, 2.0]);
    waiting.join().unwrap().unwrap();
    cache.wait_transfer(&arriving, Some(Duration::ZERO)).unwrap();
    assert_eq!(arriving.info().unwrap().state, TransferState::Done);
    assert_eq!(step(&mut cache, &[7], &[1], &[9.0]).unwrap(), [4.0]);
    prefill.join().unwrap();
    cache.check().unwrap();
}

#[test]
fn a_program_may_drive_its_transport() {
    let (mut from, mut to, sender, receiver) = (small(), small(), manual(), transport());
    filled(&mut from, 1, &[1, 2, 3, 4, 5, 6]);
    let arriving = to.receive(&receiver, &ReceiveOptions::new(1, 6)).unwrap();
    let leaving = from.send(&sender, 1, 0, &arriving.ticket().unwrap(), &SendOptions::default()).unwrap();
    #[cfg(unix)]
    assert!(std::os::fd::AsRawFd::as_raw_fd(&sender.fd().unwrap()) >= 0);
    for _ in 0..10_000 {
        if leaving.fence().unwrap().is_done().unwrap() {
            break;
        }
        sender.progress(Some(Duration::from_millis(5))).unwrap();
    }
    from.wait_transfer(&leaving, Some(Duration::ZERO)).unwrap();
    to.wait_transfer(&arriving, LONG).unwrap();
    // Waiting drives it as well.
    let arriving = to.receive(&receiver, &ReceiveOptions::new(2, 6)).unwrap();
    let leaving = from.send(&sender, 1, 0, &arriving.ticket().unwrap(), &SendOptions::default()).unwrap();
    from.wait_transfer(&leaving, None).unwrap();
    to.wait_transfer(&arriving, None).unwrap();
    assert_eq!(to.sequences().unwrap(), [1, 2]);
    #[cfg(unix)]
    assert_eq!(receiver.fd().unwrap_err().status(), Status::InvalidState);
    assert_eq!(receiver.progress(None).unwrap_err().status(), Status::InvalidState);
}

#[test]
fn what_ends_early_leaves_nothing() {
    let (mut from, mut to, transport) = (small(), small(), transport());
    filled(&mut from, 1, &[1, 2, 3, 4, 5, 6]);
    filled(&mut to, 2, &[7, 8, 9]);
    let before = to.save(&[2], None).unwrap();
    // Cancelled, by another thread.
    let arriving = to.receive(&transport, &ReceiveOptions::new(1, 6)).unwrap();
    let ticket = arriving.ticket().unwrap();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| arriving.cancel().unwrap());
        to.wait_transfer(&arriving, LONG).unwrap_err()
    });
    assert_eq!(error.status(), Status::Cancelled, "{error}");
    let info = arriving.info().unwrap();
    assert_eq!((info.state, info.status), (TransferState::Failed, Some(Status::Cancelled)));
    assert!(info.message.contains("cancelled") && info.peer_message.is_empty(), "{info:?}");
    let late = from.send(&transport, 1, 0, &ticket, &SendOptions::default()).unwrap();
    let error = from.wait_transfer(&late, LONG).unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    assert!(late.info().unwrap().peer_message.contains("cancelled"), "{:?}", late.info());
    // Behind the tokens that are there, and dropped.
    let mut options = ReceiveOptions::new(2, 4);
    options.begin = 3;
    drop(to.receive(&transport, &options).unwrap());
    to.trim().unwrap(); // The next exclusive call sees that it has ended.
    assert!(to.save(&[2], None).unwrap() == before);
    // Out of time, and not over by then.
    let mut options = ReceiveOptions::new(1, 6);
    options.deadline = Duration::from_millis(20);
    let hasty = to.receive(&transport, &options).unwrap();
    let error = to.wait_transfer(&hasty, LONG).unwrap_err();
    assert_eq!(error.status(), Status::Timeout);
    assert!(error.message().contains("deadline"), "{error}");
    (options.deadline, options.idle) = (Duration::MAX, Duration::MAX);
    let patient = to.receive(&transport, &options).unwrap();
    let error = to.wait_transfer(&patient, Some(Duration::ZERO)).unwrap_err();
    assert_eq!((error.status(), patient.info().unwrap().status), (Status::Timeout, None));
    // Closed: the open one is cancelled, new ones are refused.
    assert_eq!(transport.close(Some(Duration::ZERO)).unwrap_err().status(), Status::Timeout);
    transport.close(None).unwrap();
    assert_eq!(to.wait_transfer(&patient, LONG).unwrap_err().status(), Status::Cancelled);
    assert_eq!(to.receive(&transport, &options).unwrap_err().status(), Status::InvalidState);
    assert_eq!(to.sequences().unwrap(), [2]);
    assert!(to.save(&[2], None).unwrap() == before);
    to.check().unwrap();
    from.check().unwrap();
}

#[test]
fn handles_outlive_caches_and_transports() {
    let (mut from, mut to, transport) = (small(), small(), transport());
    filled(&mut from, 1, &[1, 2, 3, 4]);
    let arriving = to.receive(&transport, &ReceiveOptions::new(1, 4)).unwrap();
    let leaving = from.send(&transport, 1, 0, &arriving.ticket().unwrap(), &SendOptions::default()).unwrap();
    from.wait_transfer(&leaving, LONG).unwrap();
    drop(transport);
    to.wait_transfer(&arriving, LONG).unwrap();
    assert_eq!(to.length(1).unwrap(), 4);
    let other = Transport::open(&TransportOptions::default()).unwrap();
    let (lost, orphan): (Transfer, Transfer) = (
        to.receive(&other, &ReceiveOptions::new(2, 4)).unwrap(),
        to.receive(&other, &ReceiveOptions::new(3, 4)).unwrap(),
    );
    drop(other);
    assert_eq!(to.wait_transfer(&lost, LONG).unwrap_err().status(), Status::Cancelled);
    drop(to);
    assert_eq!(orphan.info().unwrap().state, TransferState::Failed);
    assert!(orphan.fence().unwrap().is_done().unwrap());
    // One that has arrived, and has lost both.
    let (mut to, other) = (small(), Transport::open(&TransportOptions::default()).unwrap());
    let arrived = to.receive(&other, &ReceiveOptions::new(1, 4)).unwrap();
    let leaving = from.send(&other, 1, 0, &arrived.ticket().unwrap(), &SendOptions::default()).unwrap();
    from.wait_transfer(&leaving, LONG).unwrap();
    drop(other);
    drop(to);
    assert_eq!(arrived.info().unwrap().state, TransferState::Arrived);
    from.check().unwrap();
}

#[test]
fn a_transfer_is_waited_for_on_its_own_cache() {
    let (mut from, mut to, transport) = (small(), small(), transport());
    filled(&mut from, 1, &[1, 2, 3, 4]);
    let arriving = to.receive(&transport, &ReceiveOptions::new(1, 4)).unwrap();
    let error = from.wait_transfer(&arriving, LONG).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().starts_with("wait_transfer: the transfer is of the cache at 0x"), "{error}");
    // A forward lends its cache, which is the same one.
    to.add(5).unwrap();
    let mut forward = to.begin(&Batch::new(&[5], &[1]).partial()).unwrap();
    let leaving = from.send(&transport, 1, 0, &arriving.ticket().unwrap(), &SendOptions::default()).unwrap();
    from.wait_transfer(&leaving, LONG).unwrap();
    let error = forward.cache_mut().wait_transfer(&arriving, LONG).unwrap_err();
    assert!(error.is_busy() && error.message().contains("forward is open"), "{error}");
    drop(forward);
    to.wait_transfer(&arriving, LONG).unwrap();
    assert_eq!(to.length(1).unwrap(), 4);
}

#[test]
fn bad_arguments_are_named() {
    let open = |change: &dyn Fn(&mut TransportOptions)| {
        let mut options = TransportOptions::default();
        change(&mut options);
        Transport::open(&options).unwrap_err()
    };
    let error = open(&|o| o.engine = Some("tcp".into()));
    assert!(error.is_unsupported() && error.message().contains("\"tcp\""), "{error}");
    let error = open(&|o| o.engine = Some("a\0b".into()));
    assert_eq!(error.message(), "engine has a byte of value 0");
    let error = open(&|o| o.address = Some("a\0b".into()));
    assert_eq!(error.message(), "the address has a byte of value 0");
    let error = open(&|o| o.address = Some(String::new()));
    assert!(error.message().contains("desc.address is empty"), "{error}");
    let error = open(&|o| o.resend_rounds = -1);
    assert!(error.message().contains("desc.resend_rounds = -1"), "{error}");
    let mut named = TransportOptions::default();
    named.address = Some(format!("rust-{}", std::process::id()));
    let first = Transport::open(&named).unwrap();
    assert_eq!(Some(first.address().unwrap()), named.address);
    let error = Transport::open(&named).unwrap_err();
    assert_eq!(error.status(), Status::AlreadyExists);
    assert!(error.message().contains(&first.address().unwrap()), "{error}");

    let (mut cache, mut other) = (small(), small());
    filled(&mut cache, 1, &[1, 2, 3, 4]);
    let before = cache.save(&[1], None).unwrap();
    let mut refused = |status: Status, part: &str, change: &dyn Fn(&mut ReceiveOptions)| {
        let mut options = ReceiveOptions::new(5, 4);
        change(&mut options);
        let error = cache.receive(&first, &options).unwrap_err();
        assert_eq!(error.status(), status, "{error}");
        assert!(error.message().contains(part), "{error}");
        assert_eq!(cache.sequences().unwrap(), [1]);
    };
    refused(Status::InvalidArgument, "desc.num_tokens = 0", &|o| o.num_tokens = 0);
    refused(Status::InvalidArgument, "desc.begin = -1", &|o| o.begin = -1);
    refused(Status::InvalidArgument, "desc.cross_length = -1", &|o| o.cross_length = -1);
    refused(Status::InvalidArgument, "desc.seq = -3", &|o| o.seq = -3);
    refused(Status::InvalidArgument, "255", &|o| o.model_id = Some("m".repeat(256)));
    refused(Status::InvalidArgument, "model_id has a byte of value 0", &|o| o.model_id = Some("\0".into()));
    refused(Status::NotFound, "sequence 5", &|o| o.begin = 3);
    refused(Status::OutOfRange, "desc.priority = 101", &|o| o.priority = 101);
    refused(Status::NeverFits, "", &|o| o.num_tokens = 1 << 40);

    let arriving = other.receive(&first, &ReceiveOptions::new(1, 4)).unwrap();
    let ticket = arriving.ticket().unwrap();
    let mut refused = |status: Status, seq: i64, begin: i64, ticket: &[u8]| {
        let error = cache.send(&first, seq, begin, ticket, &SendOptions::default()).unwrap_err();
        assert_eq!(error.status(), status, "{error}");
        assert!(cache.save(&[1], None).unwrap() == before);
    };
    refused(Status::NotFound, 9, 0, &ticket);
    refused(Status::InvalidArgument, 1, 2, &ticket);
    refused(Status::InvalidArgument, 1, 0, &[]);
    refused(Status::InvalidArgument, 1, 0, &[0; 5000]);
    let mut damaged = ticket.clone();
    *damaged.last_mut().unwrap() ^= 1;
    refused(Status::Corrupt, 1, 0, &damaged);
    // Another model is refused by name, on both sides.
    let mut options = ReceiveOptions::new(2, 4);
    options.model_id = Some("llama".into());
    let picky = other.receive(&first, &options).unwrap();
    let mut named = SendOptions::default();
    named.model_id = Some("gemma".into());
    let leaving = cache.send(&first, 1, 0, &picky.ticket().unwrap(), &named).unwrap();
    let errors = [other.wait_transfer(&picky, LONG), cache.wait_transfer(&leaving, LONG)];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.message().contains("llama") && error.message().contains("gemma"), "{error}");
    }
    assert_eq!(other.sequences().unwrap(), [1]);
}

#[test]
fn each_end_is_told_once() {
    let layer = Layer::attention(1, 1, 8).dtype(DType::F32);
    let (mut from, mut to, transport) = (of(&layer, 16), of(&layer, 16), transport());
    from.add(4).unwrap();
    grow(&mut from, 4, 20, 1, 8, &[]);
    let (told, news) = channel();
    let on_done = |side: &'static str| {
        let told = told.clone();
        Some(OnDone::new(move |status| told.send((side, status)).unwrap()))
    };
    let mut receive = ReceiveOptions::new(4, 20);
    receive.on_done = on_done("receiver");
    let mut send = SendOptions::default();
    send.on_done = on_done("sender");
    let next = || news.recv_timeout(LONG.unwrap()).unwrap();
    let both = || {
        let mut all = [next(), next()];
        all.sort_by_key(|one| one.0);
        all
    };

    let arriving = to.receive(&transport, &receive).unwrap();
    let leaving = from.send(&transport, 4, 0, &arriving.ticket().unwrap(), &send).unwrap();
    assert_eq!(both(), [("receiver", None), ("sender", None)]);
    from.wait_transfer(&leaving, LONG).unwrap();
    to.wait_transfer(&arriving, LONG).unwrap();

    receive.seq = 5;
    let arriving = to.receive(&transport, &receive).unwrap();
    let ticket = arriving.ticket().unwrap();
    arriving.cancel().unwrap();
    let leaving = from.send(&transport, 4, 0, &ticket, &send).unwrap();
    let cancelled = Some(Status::Cancelled);
    assert_eq!(both(), [("receiver", cancelled), ("sender", cancelled)]);
    drop((arriving, leaving));

    // One that is dropped before its end is told there, and one that does not begin is not.
    receive.seq = 6;
    drop(to.receive(&transport, &receive).unwrap());
    assert_eq!(news.try_recv().unwrap(), ("receiver", cancelled));
    receive.num_tokens = 1 << 40;
    assert_eq!(to.receive(&transport, &receive).unwrap_err().status(), Status::NeverFits);
    assert_eq!(from.send(&transport, 9, 0, &ticket, &send).unwrap_err().status(), Status::NotFound);

    // A closure may own the last of its transport, and one that panics does no harm.
    let own = Transport::open(&TransportOptions::default()).unwrap();
    let mut last = ReceiveOptions::new(7, 20);
    last.deadline = Duration::from_millis(20);
    let slot = std::sync::Arc::new(std::sync::Mutex::new(None));
    let (owned, told) = (slot.clone(), told.clone());
    last.on_done = Some(OnDone::new(move |status| {
        drop(owned.lock().unwrap().take());
        told.send(("alone", status)).unwrap();
        panic!("the test's own");
    }));
    let arriving = to.receive(&own, &last).unwrap();
    *slot.lock().unwrap() = Some(own);
    assert_eq!(next(), ("alone", Some(Status::Timeout)));
    assert_eq!(to.wait_transfer(&arriving, LONG).unwrap_err().status(), Status::Timeout);
    drop(receive);
    drop(send);
    assert!(news.try_recv().is_err());
    from.check().unwrap();
    to.check().unwrap();
}
