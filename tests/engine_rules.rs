//! Each rule of `engine::rules` with a test that fails without it, and the limits of decoding.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    unreachable_pub,
    reason = "a test may end by panicking, and prints for people"
)]

use kvjournal::engine::rules::{DecodeOptions, Note};
use kvjournal::engine::{Batch, BatchFault, EventProblem, Malformed, Namespace, decode_batch, tokens_hash};
use kvjournal::event::{BlockHash, EventData, Stored, TokensHash};
use serde_json::{Value, json};

fn decode(bytes: &[u8]) -> Batch {
    decode_batch(bytes, DecodeOptions::default()).unwrap()
}

/// Writes JSON as msgpack.
fn pack(value: &Value, out: &mut Vec<u8>) {
    use rmp::encode as mp;
    match value {
        Value::Null => mp::write_nil(out).unwrap(),
        Value::Bool(value) => mp::write_bool(out, *value).unwrap(),
        Value::Number(number) if number.is_f64() => mp::write_f64(out, number.as_f64().unwrap()).unwrap(),
        Value::Number(number) => match number.as_u64() {
            Some(number) => drop(mp::write_uint(out, number).unwrap()),
            None => drop(mp::write_sint(out, number.as_i64().unwrap()).unwrap()),
        },
        Value::String(text) => mp::write_str(out, text).unwrap(),
        Value::Array(list) => {
            mp::write_array_len(out, list.len() as u32).unwrap();
            list.iter().for_each(|value| pack(value, out));
        }
        Value::Object(map) => {
            mp::write_map_len(out, map.len() as u32).unwrap();
            for (key, value) in map {
                mp::write_str(out, key).unwrap();
                pack(value, out);
            }
        }
    }
}

fn batch_of(events: Value, options: DecodeOptions) -> Batch {
    let mut bytes = Vec::new();
    pack(&json!([1.5, events, 0]), &mut bytes);
    decode_batch(&bytes, options).unwrap()
}

/// A `BlockStored` of two blocks of four tokens, with some fields changed.
fn stored_with(changes: Value) -> (Stored, Vec<Note>) {
    stored_under(changes, DecodeOptions::default())
}

fn stored_under(changes: Value, options: DecodeOptions) -> (Stored, Vec<Note>) {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null,
        "token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "block_size": 4, "medium": "GPU"
    });
    event.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let decoded = batch_of(json!([event]), options).events.remove(0);
    let EventData::Stored(stored) = decoded.data else { panic!("{:?}", decoded.problem) };
    (stored, decoded.notes)
}

fn tokens_of(stored: &Stored) -> Vec<Option<TokensHash>> {
    stored.blocks.iter().map(|block| block.tokens_hash).collect()
}

fn plain() -> [Option<TokensHash>; 2] {
    let plain = Namespace::new(None, None);
    [Some(tokens_hash(plain, &[1, 2, 3, 4], None)), Some(tokens_hash(plain, &[5, 6, 7, 8], None))]
}

#[test]
fn rule_plain_blocks_have_their_tokens_hashes_and_no_notes() {
    let (stored, notes) = stored_with(json!({}));
    assert_eq!((tokens_of(&stored), notes), (plain().to_vec(), vec![]));
    assert!(stored.placement.is_own_full_attention());
}

#[test]
fn rule_a_bad_or_unknown_event_never_costs_its_neighbours() {
    let good = json!({"type": "BlockRemoved", "block_hashes": [9]});
    for (bad, tag, problem) in [
        (
            json!({"type": "TierBlocksCleared"}),
            "TierBlocksCleared",
            EventProblem::UnknownTag("TierBlocksCleared".into()),
        ),
        (json!({"block_hashes": [1]}), "", EventProblem::NoTag),
        (json!(7), "", EventProblem::NoEvent),
        (json!({"type": "BlockRemoved"}), "BlockRemoved", EventProblem::Missing("block_hashes")),
        (
            json!({"type": "BlockRemoved", "block_hashes": ["x"]}),
            "BlockRemoved",
            EventProblem::Field { field: "block_hashes", what: "one is no integer and no 8 bytes or more" },
        ),
        (
            json!({"type": "BlockStored", "block_hashes": [1], "block_size": "x"}),
            "BlockStored",
            EventProblem::Field { field: "block_size", what: "it is no number of 32 bits" },
        ),
        (
            json!({"type": "BlockStored", "block_hashes": [1], "medium": 7}),
            "BlockStored",
            EventProblem::Field { field: "medium", what: "it is no text" },
        ),
    ] {
        let batch = batch_of(json!([good, bad, good]), DecodeOptions::default());
        assert_eq!(batch.events.len(), 3);
        assert_eq!(batch.events[1].problem, Some(problem));
        assert!(matches!(&batch.events[1].data, EventData::Unknown(unknown) if unknown.tag == tag), "{bad}");
        for good in [&batch.events[0], &batch.events[2]] {
            assert!(matches!(&good.data, EventData::Removed(r) if r.block_hashes == [BlockHash(9)]));
        }
    }
}

#[test]
fn rule_other_groups_and_kinds_of_attention_do_not_count() {
    let (stored, notes) = stored_with(json!({"group_idx": 1}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (false, vec![Note::OtherGroup]));
    let (stored, notes) = stored_with(json!({"group_idx": 0, "kv_cache_spec_kind": "mamba"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (false, vec![Note::OtherAttention]));
    let (stored, notes) = stored_with(json!({"group_idx": 0, "kv_cache_spec_kind": "mla_attention"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (true, vec![]));
}

#[test]
fn rule_remote_and_foreign_blocks_do_not_count() {
    let (stored, notes) = stored_with(json!({"locality": "REMOTE"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (false, vec![Note::Remote]));
    let (stored, notes) = stored_with(json!({"locality": "LOCAL"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (true, vec![]));
    let (stored, notes) = stored_with(json!({"ownership": "pool"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (false, vec![Note::Foreign]));
}

#[test]
fn rule_a_medium_counts_in_any_case_and_not_if_nobody_knows_it() {
    let (stored, notes) = stored_with(json!({"medium": "cPu"}));
    assert_eq!(stored.placement.medium.as_deref(), Some("cPu"), "kept as written");
    assert_eq!((stored.placement.is_own_full_attention(), notes), (true, vec![]));
    let (stored, notes) = stored_with(json!({"medium": "TAPE"}));
    assert_eq!((stored.placement.is_own_full_attention(), notes), (false, vec![Note::UnknownMedium]));
}

#[test]
fn rule_placeholders_have_no_tokens() {
    for changes in [
        json!({"token_ids": []}),
        json!({"token_ids": null}),
        json!({"block_size": 0}),
        json!({"block_size": null}),
    ] {
        let (stored, notes) = stored_with(changes);
        assert_eq!((tokens_of(&stored), notes), (vec![None, None], vec![Note::Placeholder]));
    }
}

#[test]
fn rule_masked_blocks_cannot_be_paired() {
    for tokens in [json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]), json!([1, 2, 3, 4, 5])] {
        let (stored, notes) = stored_with(json!({"token_ids": tokens}));
        assert_eq!((tokens_of(&stored), notes), (vec![None, None], vec![Note::Unpaired]));
    }
}

#[test]
fn rule_blocks_of_another_size_than_configured_are_not_hashed() {
    let configured = |size| DecodeOptions { block_size: Some(size) };
    let (stored, notes) = stored_under(json!({}), configured(16));
    assert_eq!((tokens_of(&stored), notes), (vec![None, None], vec![Note::OtherBlockSize]));
    let (stored, notes) = stored_under(json!({}), configured(4));
    assert_eq!((tokens_of(&stored), notes), (plain().to_vec(), vec![]));
}

#[test]
fn rule_odd_tokens_cost_their_block_only() {
    for odd in [json!("digest"), json!([3, 4]), json!(-1), json!(4_294_967_296_u64), json!(1.5)] {
        let (stored, notes) = stored_with(json!({"token_ids": [1, 2, odd, 4, 5, 6, 7, 8]}));
        assert_eq!((tokens_of(&stored), notes), (vec![None, plain()[1]], vec![Note::OddTokens]), "{odd}");
    }
    let (stored, notes) = stored_with(json!({"token_ids": [4_294_967_295_u64, 2, 3, 4, 5, 6, 7, 8]}));
    let largest = tokens_hash(Namespace::new(None, None), &[u32::MAX, 2, 3, 4], None);
    assert_eq!((tokens_of(&stored)[0], notes), (Some(largest), vec![]));
}

#[test]
fn rule_images_never_pass_for_plain_tokens() {
    let (stored, notes) = stored_with(json!({"extra_keys": [null, [["image", -3]]]}));
    assert_eq!((tokens_of(&stored), notes), (vec![plain()[0], None], vec![Note::Multimodal]));
    assert_eq!(stored.blocks[1].mm.as_ref().unwrap().mm_objects.len(), 1);
    let routed = format!("00000000000000ff{}", "0".repeat(48));
    let (stored, notes) = stored_with(json!({"extra_keys": [null, [[routed, 0]]]}));
    let mm = stored.blocks[1].mm.as_ref().unwrap();
    assert_eq!(mm.mm_objects[0].mm_hash, 0xff);
    let hash = tokens_hash(Namespace::new(None, None), &[5, 6, 7, 8], Some(mm));
    assert_eq!((tokens_of(&stored), notes), (vec![plain()[0], Some(hash)], vec![]));
    let (stored, notes) =
        stored_with(json!({"mm_keys": [[{"type": "mm_key", "hash": "00ff", "start_offset": 2}], []]}));
    assert_eq!((tokens_of(&stored), notes), (vec![None, plain()[1]], vec![Note::Multimodal]));
}

#[test]
fn rule_unknown_extra_keys_set_their_block_apart() {
    for odd in [json!(7), json!(1.5), json!({"a": 1})] {
        let (stored, notes) = stored_with(json!({"extra_keys": [null, [odd]]}));
        assert_eq!((tokens_of(&stored), notes), (vec![plain()[0], None], vec![Note::OddKeys]), "{odd}");
    }
    let (stored, notes) = stored_with(json!({"extra_keys": [null, ["text past the first block"]]}));
    assert_eq!((tokens_of(&stored), notes), (vec![plain()[0], None], vec![Note::OddKeys]));
}

#[test]
fn rule_the_cache_salt_is_found_where_engines_put_it() {
    let salted = |changes: Value| {
        let (stored, _) = stored_with(changes);
        let namespace = Namespace::new(stored.lora.as_deref(), stored.salt.as_deref());
        let hash = tokens_hash(namespace, &[5, 6, 7, 8], None);
        assert_eq!(stored.blocks[1].tokens_hash, Some(hash), "the salt counts for all blocks");
        stored.salt
    };
    assert_eq!(salted(json!({"cache_salt": "s"})).as_deref(), Some("s"));
    assert_eq!(salted(json!({"cache_salt": ""})), None);
    assert_eq!(salted(json!({"extra_keys": [["s"], null]})).as_deref(), Some("s"));
    assert_eq!(salted(json!({"extra_keys": [["dynamo-cache-salt:s"], null]})).as_deref(), Some("s"));
    assert_eq!(salted(json!({"lora_name": "a", "extra_keys": [["a"], ["a"]]})), None);
    assert_eq!(salted(json!({"lora_name": "a", "extra_keys": [["a", "a"], ["a"]]})).as_deref(), Some("a"));
    let sglang = json!([["BlockStored", [1], null, [1, 2, 3, 4], 4, null, "GPU", {"cache_salt": "s"}]]);
    let batch = batch_of(sglang, DecodeOptions::default());
    let EventData::Stored(stored) = &batch.events[0].data else { panic!() };
    assert_eq!((stored.salt.as_deref(), stored.lora.as_deref()), (Some("s"), None));
}

#[test]
fn rule_text_that_cannot_be_told_to_be_the_salt_is_never_hashed_as_plain_tokens() {
    let of = |changes: Value| {
        let (stored, notes) = stored_with(changes);
        (tokens_of(&stored), stored.salt, notes)
    };
    // No salt that is kept whole: nothing of the event may pass for unsalted.
    let none = (vec![None, None], None, vec![Note::OddKeys]);
    assert_eq!(of(json!({"extra_keys": [["x".repeat(1025)], null]})), none);
    assert_eq!(of(json!({"extra_keys": [[""], null]})), none);
    assert_eq!(of(json!({"extra_keys": [["dynamo-cache-salt:"], null]})), none);
    // vLLM gives the salt to the first block of a prompt only: past a parent, text is another key.
    let (hashes, salt, notes) = of(json!({"parent_block_hash": 9, "extra_keys": [["digest"], null]}));
    assert_eq!((hashes, salt, notes), (vec![None, plain()[1]], None, vec![Note::OddKeys]));
    // A salt by name, and text beside it that is not the salt.
    let (hashes, salt, notes) = of(json!({"cache_salt": "s", "extra_keys": [["digest"], null]}));
    let salted = tokens_hash(Namespace::new(None, Some("s")), &[5, 6, 7, 8], None);
    assert_eq!((hashes, notes), (vec![None, Some(salted)], vec![Note::OddKeys]));
    assert_eq!(salt.as_deref(), Some("s"));
    let (hashes, _, notes) = of(json!({"cache_salt": "s", "extra_keys": [["s"], null]}));
    assert_eq!((hashes[1], hashes[0].is_some(), notes), (Some(salted), true, vec![]));
}

#[test]
fn rule_two_salts_that_are_no_utf_8_do_not_become_one() {
    let of = |byte: u8| {
        let mut bytes = Vec::new();
        pack(
            &json!([1.5, [{
                "type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1,
                "extra_keys": [["?"]]
            }]]),
            &mut bytes,
        );
        let at = bytes.windows(2).position(|pair| pair == b"\xa1?").unwrap();
        bytes[at + 1] = byte;
        let EventData::Stored(stored) = decode(&bytes).events.remove(0).data else { panic!() };
        (stored.salt, stored.blocks[0].tokens_hash)
    };
    assert_eq!(of(b's').0.as_deref(), Some("s"));
    assert_eq!((of(0xfe), of(0xff)), ((None, None), (None, None)));
}

#[test]
fn rule_two_adapters_never_share_a_hash() {
    let of = |changes: Value| tokens_of(&stored_with(changes).0)[0];
    let hashes = [
        of(json!({})),
        of(json!({"lora_id": 1})),
        of(json!({"lora_id": 2})),
        of(json!({"lora_id": 2, "lora_name": "a"})),
    ];
    for (index, hash) in hashes.iter().enumerate() {
        assert!(hash.is_some() && !hashes[..index].contains(hash));
    }
    assert_eq!(of(json!({"lora_id": 9, "lora_name": "a"})), hashes[3], "the name alone counts");
}

#[test]
fn rule_sglang_s_root_is_no_parent_and_odd_chains_are_kept_as_said() {
    let (stored, _) = stored_with(json!({"parent_block_hash": 5_740_354_900_026_072_187_u64}));
    assert_eq!(stored.parent, None);
    let (stored, _) = stored_with(json!({"parent_block_hash": 1, "block_hashes": [1, 1]}));
    assert_eq!(stored.parent, Some(BlockHash(1)));
    assert_eq!(tokens_of(&stored), plain());
    let (stored, _) = stored_with(json!({"parent_block_hash": 0}));
    assert_eq!(stored.parent, Some(BlockHash(0)));
}

#[test]
fn limits_are_reached_with_a_typed_answer() {
    let (long, deep) = ("x".repeat(1025), "x".repeat(1024));
    let event = |medium: &str| json!([{"type": "BlockRemoved", "block_hashes": [1], "medium": medium}]);
    let batch = batch_of(event(&long), DecodeOptions::default());
    assert_eq!(
        batch.events[0].problem,
        Some(EventProblem::Field { field: "medium", what: "it is too long" })
    );
    assert_eq!(batch_of(event(&deep), DecodeOptions::default()).events[0].problem, None);
    let tag = batch_of(json!([{"type": "é".repeat(200)}]), DecodeOptions::default());
    assert!(matches!(&tag.events[0].data, EventData::Unknown(u) if u.tag == "é".repeat(64)));
    let mut many = vec![0x92, 0xc0, 0xdd];
    many.extend_from_slice(&16_385_u32.to_be_bytes());
    many.extend(std::iter::repeat_n(0xc0, 16_385));
    let error = decode_batch(&many, DecodeOptions::default()).unwrap_err();
    assert_eq!(error.fault, BatchFault::TooMany { count: 16_385 });
    let error = decode_batch(&vec![0xc0; 16 * 1024 * 1024 + 1], DecodeOptions::default()).unwrap_err();
    assert!(matches!(error.fault, BatchFault::TooLong { .. }));
    let removal = |count: u32| {
        let mut bytes = b"\x92\xc0\x91\x92\xacBlockRemoved\xdd".to_vec();
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend(std::iter::repeat_n(1, count as usize));
        decode(&bytes).events.remove(0).problem
    };
    assert_eq!(removal(262_144), None);
    let many = EventProblem::Field { field: "block_hashes", what: "there are too many" };
    assert_eq!(removal(262_145), Some(many));
    let nested = [&[0x92, 0xc0, 0x91][..], &[0x91; 100_000]].concat();
    let error = decode_batch(&nested, DecodeOptions::default()).unwrap_err();
    assert_eq!(error.fault, BatchFault::Malformed(Malformed::Depth));
}
