//! Every given sample of an engine's payload, with every decoded field held against its manifest.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use std::path::Path;

use kvjournal::engine::rules::DecodeOptions;
use kvjournal::engine::{
    Batch, BatchFault, Malformed, Message, Namespace, Reply, decode_batch, decode_message, decode_reply,
    tokens_hash,
};
use kvjournal::event::{BlockHash, DpRank, EngineTime, EventData, Stored};
use serde_json::Value;

fn samples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/samples"))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(samples().join(name)).unwrap()
}

fn manifest() -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(samples().join("MANIFEST.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn decode(bytes: &[u8]) -> Batch {
    decode_batch(bytes, DecodeOptions::default()).unwrap()
}

/// A hash of the manifest in vLLM's integer form.
fn hash(value: &Value) -> BlockHash {
    BlockHash(match value {
        Value::Object(map) => {
            let hex = map["$bytes_hex"].as_str().unwrap();
            u64::from_str_radix(&hex[hex.len() - 16..], 16).unwrap()
        }
        other => other.as_u64().unwrap_or_else(|| other.as_i64().unwrap() as u64),
    })
}

const STORED: &[&str] = &[
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED: &[&str] = &["type", "block_hashes", "medium", "group_idx"];

/// A field of a manifest's event, in either form.
fn field<'a>(event: &'a Value, name: &str) -> &'a Value {
    match event {
        Value::Object(map) => map.get(name).unwrap_or(&Value::Null),
        Value::Array(list) => {
            let names = if list[0] == "BlockRemoved" { REMOVED } else { STORED };
            names.iter().position(|n| *n == name).and_then(|at| list.get(at)).unwrap_or(&Value::Null)
        }
        _ => &Value::Null,
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Holds one decoded event against the manifest's.
fn check_event(name: &str, decoded: &EventData, expected: &Value) {
    let field = |field_name: &str| field(expected, field_name);
    let tag = field("type").as_str().unwrap();
    let hashes =
        || -> Vec<BlockHash> { field("block_hashes").as_array().unwrap().iter().map(hash).collect() };
    match decoded {
        EventData::Stored(stored) => {
            assert_eq!(tag, "BlockStored", "{name}");
            let found: Vec<BlockHash> = stored.blocks.iter().map(|block| block.block_hash).collect();
            assert_eq!(found, hashes(), "{name}");
            let parent = Some(field("parent_block_hash")).filter(|p| !p.is_null()).map(hash);
            // SGLang's root is never stored.
            let parent = parent.filter(|parent| parent.0 != 5_740_354_900_026_072_187);
            assert_eq!(stored.parent, parent, "{name}");
            assert_eq!(stored.block_size.map(u64::from), field("block_size").as_u64(), "{name}");
            let lora = text(field("lora_name"));
            let lora = lora.or_else(|| field("lora_id").as_u64().map(|id| format!("lora_id:{id}")));
            assert_eq!(stored.lora, lora, "{name}");
            assert_eq!(stored.salt, salt(expected), "{name}");
            check_placement(name, &stored.placement, expected);
            check_tokens(name, stored, expected);
            assert!(!stored.refresh && stored.start_position.is_none(), "{name}");
        }
        EventData::Removed(removed) => {
            assert_eq!(tag, "BlockRemoved", "{name}");
            assert_eq!(removed.block_hashes, hashes(), "{name}");
            check_placement(name, &removed.placement, expected);
        }
        EventData::Cleared(cleared) => {
            assert_eq!(tag, "AllBlocksCleared", "{name}");
            assert_eq!(cleared, &Default::default(), "{name}");
        }
        EventData::Unknown(unknown) => assert_eq!(unknown.tag, tag, "{name}"),
    }
}

/// The salt of a manifest's event: by name, or the text among the keys of its first block.
fn salt(expected: &Value) -> Option<String> {
    let first = || field(expected, "extra_keys").get(0)?.as_array()?.iter().find_map(text);
    text(field(expected, "cache_salt")).or_else(first)
}

fn check_placement(name: &str, placement: &kvjournal::event::Placement, expected: &Value) {
    let field = |field_name: &str| field(expected, field_name);
    assert_eq!(placement.medium, text(field("medium")), "{name}");
    assert_eq!(placement.group.map(u64::from), field("group_idx").as_u64(), "{name}");
    assert_eq!(placement.kind, text(field("kv_cache_spec_kind")), "{name}");
    assert_eq!(placement.locality, text(field("locality")), "{name}");
    assert_eq!(placement.ownership, text(field("ownership")), "{name}");
}

/// Tokens hashes, for blocks without extra keys of their own.
fn check_tokens(name: &str, stored: &Stored, expected: &Value) {
    let empty = Vec::new();
    let tokens: Vec<Option<u32>> = field(expected, "token_ids")
        .as_array()
        .unwrap_or(&empty)
        .iter()
        .map(|token| token.as_u64().map(|token| token as u32))
        .collect();
    let size = field(expected, "block_size").as_u64().unwrap_or(0) as usize;
    let namespace = Namespace::new(stored.lora.as_deref(), stored.salt.as_deref());
    let keys = field(expected, "extra_keys").as_array().cloned().unwrap_or_default();
    for (index, block) in stored.blocks.iter().enumerate() {
        let own = tokens.get(index * size..(index + 1) * size).filter(|_| size > 0);
        let whole: Option<Vec<u32>> = own.and_then(|own| own.iter().copied().collect());
        let multimodal =
            keys.get(index).and_then(Value::as_array).is_some_and(|k| k.iter().any(Value::is_array));
        let multimodal = multimodal || !field(expected, "mm_keys").is_null();
        assert_eq!(block.mm.is_some(), multimodal, "{name} block {index}");
        if let Some(mm) = &block.mm {
            let id = if field(expected, "mm_keys").is_null() { "mmhash0123" } else { "00ff" };
            let hashes: Vec<u64> = mm.mm_objects.iter().map(|object| object.mm_hash).collect();
            assert_eq!(hashes, [xxhash_rust::xxh3::xxh3_64(id.as_bytes())], "{name} block {index}");
        }
        let expected = whole.filter(|_| !multimodal).map(|tokens| tokens_hash(namespace, &tokens, None));
        assert_eq!(block.tokens_hash, expected, "{name} block {index}");
    }
}

/// Holds a whole sample against its manifest, and its payloads against its bytes.
fn check_sample(name: &str) -> Batch {
    let bytes = bytes(name);
    let expected = &manifest()[name]["decoded"];
    let batch = decode(&bytes);
    let time = match &expected[0] {
        whole if whole.is_i64() => EngineTime::Millis(whole.as_i64().unwrap()),
        seconds => EngineTime::from_seconds(seconds.as_f64().unwrap()),
    };
    assert_eq!(batch.time, Some(time), "{name}");
    let rank = expected.get(2).and_then(Value::as_u64).map(|rank| DpRank(rank as u32));
    assert_eq!(batch.rank, rank, "{name}");
    let events = expected[1].as_array().unwrap();
    assert_eq!(batch.events.len(), events.len(), "{name}");
    let mut end = None;
    for (decoded, expected) in batch.events.iter().zip(events) {
        check_event(name, &decoded.data, expected);
        assert!(end.is_none_or(|end| end == decoded.payload.start), "{name}: payloads leave no gap");
        end = Some(decoded.payload.end);
        let alone = [&[0x92, 0xc0, 0x91], &bytes[decoded.payload.clone()]].concat();
        assert_eq!(decode(&alone).events[0].data, decoded.data, "{name}: an event's own bytes say the same");
    }
    batch
}

macro_rules! samples {
    ($($test:ident: $file:literal;)*) => {
        $(#[test]
        fn $test() {
            check_sample($file);
        })*

        #[test]
        fn every_given_sample_has_a_test() {
            let tested = [$($file,)*
                "25_huge_tokens.msgpack", "27_truncated.msgpack", "28_trailing_garbage.msgpack",
                "30_length_bomb.msgpack"];
            for name in manifest().keys().filter(|name| name.ends_with(".msgpack")) {
                assert!(tested.contains(&name.as_str()), "{name}");
            }
        }
    };
}

samples! {
    vllm_0_9_0_has_arrays_of_six_and_batches_of_two: "01_vllm_0.9.0_array6_batch2.msgpack";
    vllm_0_9_1_has_a_rank_and_an_adapter_by_number: "02_vllm_0.9.1_array6_batch3.msgpack";
    vllm_0_10_2_has_media_in_any_case: "03_vllm_0.10.2_array7_medium.msgpack";
    vllm_0_14_has_an_adapter_by_name: "04_vllm_0.14_array8_lora_name.msgpack";
    vllm_0_17_has_extra_keys: "05_vllm_0.17_array9_extra_keys.msgpack";
    vllm_0_22_has_groups_and_kinds: "07_vllm_0.22_array12_spec_kind.msgpack";
    vllm_may_write_hashes_of_32_bytes: "08_vllm_bytes32_hashes.msgpack";
    vllm_0_24_has_maps: "09_vllm_0.24_map.msgpack";
    maps_come_in_any_order_with_unknown_fields: "11_map_key_order_shuffled_unknown_fields.msgpack";
    offloading_announces_locations: "13_offload_placeholder.msgpack";
    lists_may_be_empty: "14_empty_lists.msgpack";
    a_batch_may_be_empty: "15_empty_batch.msgpack";
    sglang_0_5_5_starts_with_a_clear_and_hangs_chains_on_its_root: "17_sglang_0.5.5_array6.msgpack";
    sglang_0_5_22_leaves_fields_out: "19_sglang_0.5.22_map.msgpack";
    tensorrt_llm_has_text_among_tokens: "21_trtllm_map.msgpack";
    mooncake_has_whole_milliseconds_and_no_tokens: "22_mooncake_master_map_int_ts.msgpack";
    hash_zero_is_a_hash_also_as_a_parent: "24_hash_zero_and_parent_zero.msgpack";
}

#[test]
fn a_prompt_of_131072_tokens_is_decoded_whole() {
    let bytes = bytes("25_huge_tokens.msgpack");
    let batch = decode(&bytes);
    let EventData::Stored(stored) = &batch.events[0].data else { panic!() };
    assert_eq!(stored.blocks.len(), 8192);
    let plain = Namespace::new(None, None);
    for (index, block) in stored.blocks.iter().enumerate() {
        assert_eq!(block.block_hash.0, 0xdabc_0000_0000_0000 + index as u64);
        let token = |i: usize| 100_000 + (i * 7919 % 28_000) as u32;
        let tokens: Vec<u32> = (index * 16..(index + 1) * 16).map(token).collect();
        assert_eq!(block.tokens_hash, Some(tokens_hash(plain, &tokens, None)));
    }
}

#[test]
fn a_cut_batch_says_where_and_keeps_what_was_whole() {
    let error = decode_batch(&bytes("27_truncated.msgpack"), DecodeOptions::default()).unwrap_err();
    assert_eq!(error.fault, BatchFault::Malformed(Malformed::Cut));
    assert_eq!(error.offset, 70, "{error}");
    assert!(error.read.events.is_empty() && error.read.time.is_some(), "{error}");
    let whole = bytes("01_vllm_0.9.0_array6_batch2.msgpack");
    let all = decode(&whole).events;
    for len in 0..whole.len() {
        let error = decode_batch(&whole[..len], DecodeOptions::default()).unwrap_err();
        let read = all.iter().filter(|event| event.payload.end <= len).count();
        assert_eq!(error.read.events, all[..read], "cut at {len}: {error}");
        assert!(error.offset <= len);
    }
}

#[test]
fn bytes_after_the_end_are_told_and_the_batch_is_read() {
    let bytes = bytes("28_trailing_garbage.msgpack");
    let error = decode_batch(&bytes, DecodeOptions::default()).unwrap_err();
    assert_eq!((error.fault, error.offset), (BatchFault::Trailing { len: 3 }, bytes.len() - 3));
    assert_eq!(error.read.events.len(), 1);
    assert_eq!(error.read.rank, Some(DpRank(0)));
    assert!(matches!(error.read.events[0].data, EventData::Cleared(_)));
}

#[test]
fn a_length_that_the_bytes_do_not_back_is_refused() {
    let error = decode_batch(&bytes("30_length_bomb.msgpack"), DecodeOptions::default()).unwrap_err();
    let claimed = Malformed::Length { claimed: u32::MAX as usize, left: 0 };
    assert_eq!((error.fault, error.offset), (BatchFault::Malformed(claimed), 29));
}

fn frames(name: &str) -> Vec<Vec<u8>> {
    let bytes = bytes(name);
    let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut frames) = (4, Vec::new());
    for _ in 0..number(0) {
        frames.push(bytes[at + 4..at + 4 + number(at)].to_vec());
        at += 4 + number(at);
    }
    assert_eq!(at, bytes.len());
    frames
}

#[test]
fn live_messages_and_replies_are_read_in_both_framings() {
    let of = |name: &str| frames(name);
    let refs = |frames: &[Vec<u8>]| -> Vec<Vec<u8>> { frames.to_vec() };
    let live = of("f1_pub_live.frames");
    let live: Vec<&[u8]> = live.iter().map(Vec::as_slice).collect();
    assert_eq!(decode_message(&live), Ok(Message { topic: live[0], sequence: 258, payload: live[2] }));
    assert!(!live[0].is_empty());
    let empty = refs(&of("f2_pub_empty_topic.frames"));
    let empty: Vec<&[u8]> = empty.iter().map(Vec::as_slice).collect();
    assert_eq!(decode_message(&empty).unwrap().topic, b"");
    assert!(decode_batch(decode_message(&empty).unwrap().payload, DecodeOptions::default()).is_ok());
    for (name, topic) in [("f4_replay_reply_old.frames", false), ("f6_replay_reply_new.frames", true)] {
        let reply = of(name);
        let reply: Vec<&[u8]> = reply.iter().map(Vec::as_slice).collect();
        let Ok(Reply::Batch { topic: found, payload, .. }) = decode_reply(&reply) else { panic!("{name}") };
        assert_eq!(found.is_some(), topic, "{name}");
        assert!(decode_batch(payload, DecodeOptions::default()).is_ok(), "{name}");
    }
    for name in ["f5_replay_end_old.frames", "f7_replay_end_new.frames"] {
        let reply = of(name);
        let reply: Vec<&[u8]> = reply.iter().map(Vec::as_slice).collect();
        assert_eq!(decode_reply(&reply), Ok(Reply::End), "{name}");
    }
    assert_eq!(of("f3_replay_req_from_dealer.frames").len(), 2);
    assert!(decode_message(&[b"", b"1234567", b""]).is_err());
    assert!(decode_reply(&[b"x", &[0; 8], b""]).is_err());
}
