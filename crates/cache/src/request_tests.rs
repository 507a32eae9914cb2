use holdfast_testkit::Random;

use super::*;

const WORDS: [u64; 9] = [0, 1, 2, 3, 20, 21, u32::MAX as u64, 1 << 32, u64::MAX];

fn files() -> impl Iterator<Item = FileRef> {
    [0, 1, u32::MAX].into_iter().flat_map(|slot| {
        WORDS.map(|word| FileRef { slot: Slot::new(slot), generation: Generation::new(word) })
    })
}

fn of_file() -> Vec<FileRequest> {
    let mut all = vec![
        FileRequest::Withdraw,
        FileRequest::Replaced,
        FileRequest::Left,
        FileRequest::Log,
        FileRequest::Hear,
    ];
    for flag in [false, true] {
        all.push(FileRequest::Settle { held: flag });
        all.push(FileRequest::Drain { for_call: flag });
        all.push(FileRequest::Through { for_good: flag });
        all.push(FileRequest::Commit { behind_sync: flag });
        all.extend(Reason::ALL.map(|reason| FileRequest::Bypass { reason, let_go: flag }));
    }
    for dirfd in [-100, -1, 0, 7, i32::MAX, i32::MIN] {
        all.push(FileRequest::Unlinking { dirfd });
        let ontos = [None, Some(Onto::Free), Some(Onto::Taken)];
        all.extend(ontos.map(|onto| FileRequest::Naming { dirfd, onto }));
    }
    all
}

fn requests() -> Vec<Request> {
    let mut all = vec![Request::Moved, Request::LetGo];
    all.extend(files().flat_map(|file| of_file().into_iter().map(move |asked| Request::File(file, asked))));
    for fd in [-100, -1, 0, 7, i32::MAX, i32::MIN] {
        for sole in [None, Some(false), Some(true)] {
            for noted in [0, 1, 2, 1 << 32].map(Epoch::from_raw) {
                all.extend(Origin::ALL.map(|origin| Request::Register { fd, origin, noted, sole }));
            }
        }
        all.extend([false, true].map(|really| Request::SyncDirectory { fd, really }));
        for program in [Program::Own, Program::Child, Program::Named { dirfd: fd }] {
            all.extend(Unseen::ALL.map(|why| Request::Unseen { why, program }));
        }
        for device in WORDS {
            let inode = |ino| Inode { device, ino };
            all.extend(WORDS.map(|ino| Request::LogAgain { inode: inode(ino), dirfd: fd }));
        }
    }
    all.extend([false, true].map(|own| Request::Room { own }));
    for device in WORDS {
        all.push(Request::Follow { device, behind: Behind::Sync });
        all.extend(WORDS.map(|own_sync| Request::Follow { device, behind: Behind::Whole { own_sync } }));
    }
    all
}

fn answers() -> Vec<Result<Answer, Refusal>> {
    let mut all = vec![
        Ok(Answer::Done),
        Err(Refusal::Kernels),
        Err(Refusal::Failed),
        Err(Refusal::Malformed),
        Err(Refusal::AskSole),
        Err(Refusal::NotHeld),
        Err(Refusal::NoName),
        Err(Refusal::Held),
    ];
    all.extend([1, 5, 28, i32::MAX, -1].map(|errno| Err(Refusal::Os(Errno(errno)))));
    all.extend(files().map(|file| Ok(Answer::Place(file))));
    for flag in [false, true] {
        all.extend([Ok(Answer::News(flag)), Ok(Answer::Room(flag))]);
        let logged = |was_created| Ok(Answer::Logged { is_held: flag, was_created });
        all.extend([false, true].map(logged));
    }
    all
}

#[test]
fn every_request_comes_back_and_no_two_have_the_same_words() {
    let all = requests();
    let mut words = std::collections::HashMap::new();
    for request in all {
        let encoded = request.encode();
        assert_eq!(Request::decode(encoded), Some(request));
        let other = words.insert((encoded.kind, encoded.args), request);
        assert!(other.is_none_or(|other| other == request), "{other:?} and {request:?} are both {encoded:?}");
    }
}

#[test]
fn every_answer_comes_back() {
    for answer in answers() {
        assert_eq!(Answer::decode(Answer::encode(answer)), answer);
    }
}

/// A word of which many requests are made, or any.
fn word(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.draw(),
        1 => random.number_below(24),
        _ => WORDS[random.below(WORDS.len())],
    }
}

#[test]
fn any_words_are_one_request_or_none() {
    let mut random = Random::named("any_words_are_one_request_or_none");
    let mut decoded = 0;
    for _ in 0..400_000 {
        let kind = random.number_below(24) as u32;
        let words = RequestWords { kind, args: [(); 4].map(|()| word(&mut random)) };
        if let Some(request) = Request::decode(words) {
            assert_eq!(request.encode(), words, "{request:?} has other words, too");
            decoded += 1;
        }
    }
    assert!(decoded > 1000, "only {decoded} words made a request");
}

#[test]
fn a_word_that_is_none_of_a_requests_makes_it_none() {
    for request in requests().into_iter().step_by(7) {
        let words = request.encode();
        assert_eq!(Request::decode(RequestWords { kind: words.kind + 1000, ..words }), None);
        for index in 0..4 {
            let mut args = words.args;
            args[index] ^= 1 << 63;
            // Numbers of files and of devices are any.
            if let Some(other) = Request::decode(RequestWords { args, ..words }) {
                assert_ne!(other, request);
                assert_eq!(other.encode().args, args);
            }
        }
    }
}

#[test]
fn any_words_are_one_answer_or_a_failure() {
    let mut random = Random::named("any_words_are_one_answer_or_a_failure");
    for _ in 0..200_000 {
        let kind = random.number_below(24) as i32 - 12;
        let words = AnswerWords { kind, reply: [word(&mut random), word(&mut random)] };
        match Answer::decode(words) {
            Err(Refusal::Failed) => {}
            answer => assert_eq!(Answer::encode(answer), words),
        }
    }
}
