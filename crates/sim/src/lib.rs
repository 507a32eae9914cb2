//! A crash simulator: NVM and disk on one power cord, with the real code of clients
//! (`holdfast-cache`), of the keeper's durable steps (`holdfast_durable`) and of recovery
//! between them.
//!
//! A *history* is a list of operations of two threads and the keeper. While it plays, the machine
//! is kept at every moment at which something durable may change. From each such *crash point*
//! images of NVM and disk are drawn as the fault model of docs/crash allows; recovery runs on
//! them, crashes again inside, runs again; and an oracle that shares no code with the product says
//! whether the files are what they must be. Nothing here is part of the product.

#![deny(unsafe_code)]

pub mod actors;
pub mod check;
pub mod disk;
pub mod explore;
pub mod history;
pub mod known;
pub mod machine;
pub mod model;
pub mod nvm;
pub mod op;
mod parts;
mod program;
pub mod random;
pub mod recorder;
pub mod run;
pub mod stage;
pub mod stories;
