//! Threads of the simulated machine, as coroutines of one real thread: what runs when is decided
//! here alone, so a history plays the same way every time.

// A killed thread's stack is left as it is: no destructor runs, as none would in reality.
#![allow(unsafe_code)]

use std::cell::RefCell;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::stage::{self, Pause, Role};

/// What an actor does.
pub type Task = Box<dyn FnOnce()>;

const STACK_BYTES: usize = 256 << 10;
/// Rounds in which nobody gets on before the history counts as hanging.
const IDLE_ROUNDS_MAX: usize = 20;
/// Turns that actors take in a history's step at most: a thousand times what the longest ones take.
/// More never end, though somebody may be at work all the time.
const TURNS_MAX: usize = 1 << 16;

thread_local! {
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

struct Actor(Coroutine<(), Pause, (), DefaultStack>);

impl Actor {
    fn new(role: Role, task: Task) -> Self {
        let stack = STACKS
            .with_borrow_mut(Vec::pop)
            .unwrap_or_else(|| DefaultStack::new(STACK_BYTES).expect("memory for a stack"));
        Self(Coroutine::with_stack(stack, move |yielder, ()| {
            stage::enter(yielder, role);
            task();
        }))
    }

    fn give_back(self) {
        let stack = self.0.into_stack();
        STACKS.with_borrow_mut(|stacks| stacks.push(stack));
    }

    fn kill(mut self) {
        // SAFETY: what lies on the stack is leaked, not freed: nobody outside points into it but
        // the board, by offsets, and the boards' owner words, which the keeper's repair opens.
        unsafe { self.0.force_reset() };
        self.give_back();
    }
}

/// What happens when the main actor is interrupted.
pub enum Interruption {
    /// It is not.
    Never,
    /// Another actor goes on in between, until it is done or waits.
    Other(usize, Task),
    /// Another actor goes on in between, until it is done or waits for the main one: what it asks
    /// of the keeper it is answered meanwhile.
    Within(usize, Task),
    /// Its process is killed.
    Killed(usize),
    /// Its process is killed, and another actor goes on before the keeper hears of it.
    KilledAmid(usize, Task),
}

/// How a play ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Points the main actor passed.
    pub points: usize,
    /// Whether it was interrupted.
    pub interrupted: bool,
    /// Nobody got on any more.
    pub hangs: bool,
}

/// Plays `main` with whoever it takes. `serve` gives the next request for the keeper; `help` is
/// asked, with the number of earlier calls and whether the main actor was interrupted, when
/// everybody waits.
pub fn play(
    role: Role,
    main: Task,
    interruption: Interruption,
    mut serve: impl FnMut() -> Option<Task>,
    mut help: impl FnMut(usize, bool) -> Option<Task>,
) -> Ending {
    let waits = matches!(interruption, Interruption::Within(..));
    let (at, mut other, kills) = match interruption {
        Interruption::Never => (usize::MAX, None, false),
        Interruption::Other(at, task) | Interruption::Within(at, task) => (at, Some(task), false),
        Interruption::Killed(at) => (at, None, true),
        Interruption::KilledAmid(at, task) => (at, Some(task), true),
    };
    stage::begin();
    stage::interrupt_at(at);
    let mut actors = vec![Actor::new(role, main)];
    let mut ending = Ending { points: 0, interrupted: false, hangs: false };
    let (mut current, mut idle, mut helped, mut seen) = (0, 0, 0, stage::events());
    let (mut turns, mut main_waits) = (0, false);
    while !actors.is_empty() {
        turns += 1;
        current %= actors.len();
        main_waits &= actors.len() > 1 && idle < IDLE_ROUNDS_MAX / 2;
        if main_waits && current == 0 {
            current = 1;
        }
        let result = actors[current].0.resume(());
        stage::leave();
        match result {
            CoroutineResult::Return(()) => actors.remove(current).give_back(),
            CoroutineResult::Yield(Pause::Blocked) if turns < TURNS_MAX => current += 1,
            CoroutineResult::Yield(Pause::Blocked | Pause::Endless) => {
                ending.hangs = true;
                actors.drain(..).for_each(Actor::kill);
                break;
            }
            CoroutineResult::Yield(Pause::Interrupted) => {
                ending.interrupted = true;
                main_waits = waits;
                if kills {
                    actors.remove(current).kill();
                }
                if let Some(task) = other.take() {
                    actors.push(Actor::new(Role::Extra, task));
                    current = actors.len() - 1;
                }
            }
        }
        while let Some(task) = serve() {
            actors.push(Actor::new(Role::Extra, task));
            idle = 0;
        }
        if stage::events() == seen {
            idle += 1;
        } else {
            (idle, seen) = (0, stage::events());
        }
        if idle > IDLE_ROUNDS_MAX {
            idle = 0;
            match help(helped, ending.interrupted) {
                Some(task) => actors.push(Actor::new(Role::Extra, task)),
                None => {
                    ending.hangs = true;
                    actors.drain(..).for_each(Actor::kill);
                }
            }
            helped += 1;
        }
    }
    ending.points = stage::points();
    stage::interrupt_at(usize::MAX);
    ending
}
