//! The numbers by which the board's parts are told: no frame is taken for a lane.

use holdfast_pool::place;

place! {
    /// A lane.
    LaneIndex
}

place! {
    /// A frame of DRAM for a page row or a loaded page, among those of its kind.
    Frame
}
