//! Deliberate bugs, one for each place where a promise is upheld: whoever claims to test the
//! promises must catch each.
//!
//! A canary stands beside the line it spoils, as `if on(Canary::X)`. Without the feature `armed`,
//! [`on`] is a constant function that says no, and the compiler removes the bug. The feature is for
//! builds with the feature `canaries` alone, of the simulator and of `holdfast` with its library
//! for the end-to-end tests; any other does not compile with it ([`ARMED`]). Nothing here may do
//! anything but answer.

#![no_std]

macro_rules! canaries {
    (simulated { $($name:ident, $invariant:literal, $story:literal;)* }
     real { $($real:ident, $real_invariant:literal, $real_story:literal;)* }) => {
        /// One deliberate bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Canary {
            $(#[doc = $story] $name,)*
            $(#[doc = $real_story] $real,)*
        }

        impl Canary {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)* $(Self::$real,)*];

            /// Those that the crash simulator shows.
            pub const SIMULATED: &[Self] = &[$(Self::$name,)*];

            /// Those that need real programs, kernels and processes.
            pub const REAL: &[Self] = &[$(Self::$real,)*];

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    $(Self::$real => stringify!($real),)*
                }
            }

            /// What it breaks: an invariant by number, a history, or a page of docs/crash or docs.
            pub const fn breaks(self) -> &'static str {
                match self {
                    $(Self::$name => $invariant,)*
                    $(Self::$real => $real_invariant,)*
                }
            }

            /// What it does wrong.
            pub const fn story(self) -> &'static str {
                match self {
                    $(Self::$name => $story,)*
                    $(Self::$real => $real_story,)*
                }
            }
        }
    };
}

canaries! {
    simulated {
        SealedUnfenced, "commit-points", "a segment's seal is persisted before the records in it are fenced";
        DropFence, "1", "a write is acknowledged without the fence behind its record";
        NoCancel, "6", "no cancel record is written after a short or refused write";
        CancelUnfenced, "6", "the program hears of a short write before its cancel record is fenced";
        PageLocksOpen, "1", "two writers of the same bytes are not kept apart";
        WritersStayIn, "7", "a truncation does not keep the file's writers out";
        GroupMemberUnnoted, "3", "further members of a group are not noted in their segments' summaries";
        GenerationUnflushed, "3", "a segment's new generation is not flushed before its first record";
        GenerationKept, "3", "a reused segment keeps its old generation";
        AnnouncementsIgnored, "2", "S does not stay below what writers have announced";
        LiveSegmentFreed, "3", "a sealed segment is freed although its records are live";
        ExpireBeforeSync, "2", "records expire before the sync that covers them begins";
        SettledAfterSync, "2", "S is computed after the sync instead of before";
        SyncErrorIgnored, "4", "a failed sync expires the records all the same";
        PartTakenForWhole, "2", "a round that brought only older records to the file expires the newer ones with them";
        FramesTakenForSync, "2", "emptying the frames counts as a sync";
        TellUnlocked, "1", "telling the kernel of a size does not lock the page it brings there";
        LentNoticeForgotten, "4", "a sync on a lent description that succeeded behind a client's failed one counts";
        SyncsTogether, "4", "two syncs of a file at once: one takes the kernel's notice of the failure, the other succeeds";
        NoRewrite, "4", "a failed sync orders no rewrite from the log";
        ClientFailureForgotten, "4", "a sync that failed in a client orders no rewrite";
        SyncUnderWayForgotten, "4", "a client's sync that may be about to tell of a failure orders no rewrite";
        ReaderUnheard, "4", "an outsider who reads, and may sync, is let in before the keeper has a description that is told of failures";
        RewriteBackwards, "4", "the rewrite puts older bytes over newer ones";
        ExpiryUnpersisted, "2", "expired_seq moves on the board but not in the pool";
        CreatedExpiresEarly, "names", "a created file expires before its directory is synced";
        BypassUnsettled, "5", "a file is left to the kernel with live records";
        OutsiderUnsettled, "5", "an outsider is let in while records are live";
        AroundUnsynced, "5", "a call around the log returns before its effect is synced";
        RenameUnsettled, "names", "a file is renamed with live records";
        RenameForgotten, "names", "recovery does not make a rename again that a slot holds";
        RenameExpiresEarly, "2", "records of a renamed file expire before its new name is on disk";
        RenameUncovered, "names", "a slot holds a rename before earlier changes in the directory are on disk";
        AwaitedNameUnsynced, "names", "a file that is created where a slot expects another one does not reach the disk first";
        ReplacedNotVoid, "names", "the slot of a file that another one was renamed over does not say that its records are void";
        ReplacedForgotten, "names", "recovery does not see that another file was renamed over a file";
        TakenFromAnybody, "names", "recovery gives a file its new name whoever has it";
        MarkBeforeExpiry, "names", "a file is no new one any more before its records have expired";
        TakenFromTheLiving, "names", "recovery makes a rename over a file although only processes died";
        TakingsIgnored, "names", "a slot holds a rename over another file than it says";
        RenameBuiltOld, "names", "recovery builds a file that was renamed at its old name when the new one is taken";
        RetireDirty, "2", "a slot is given back with live records";
        InUseBeforeIdentity, "commit-points", "a slot is marked as in use before its identity is written";
        OlderUseLive, "commit-points", "recovery takes records of a slot's earlier use for live";
        NamesUncounted, "9", "a sync is absorbed although names changed that no slot holds";
        CommitSkipped, "11", "pending changes count as committed without a commit";
        PendingIgnored, "10", "what is durable at once does not wait for what is pending";
        CreationUnannounced, "10", "a file that open makes is noted only when it is made";
        UnlinkUnannounced, "names", "a removal is made without a durable intent";
        RemovalNotWithdrawn, "names", "a refused removal is not withdrawn";
        RemovalAssumed, "names", "a file's records are void once its removal is announced";
        ReleaseBeforeDirectorySync, "names", "a removed file's slot is given back before its directory is synced";
        RollForwardSkipped, "history 15", "the whole record of a dead writer is not rolled forward";
        FinishedByDisk, "behind", "a dead writer's pages are drained and written to the file, which its disk can refuse half way";
        RollForwardUnflushed, "1", "a dead writer's record is rolled forward without being flushed";
        RecoverPartGroup, "commit-points", "recovery replays a group of which members are missing";
        RecoverCancelled, "6", "recovery ignores cancel records";
        RecoverExpired, "2", "recovery replays what had expired";
        RecoverBackwards, "commit-points", "recovery lets older writes win over newer ones";
        RecoverNoTruncate, "7", "recovery leaves truncations out";
        RecoverNoPunch, "7", "recovery leaves punched holes out";
        RecoverUnsynced, "8", "recovery gives records up before they are synced to the file";
        CutsUncompared, "recovery", "a file counts as what its records left, whatever they cut off";
        BirthIgnored, "recovery", "recovery takes a file for a lost one of which it was given the handle";
        RebuiltTooEarly, "8", "recovery marks a file as rebuilt before its copy is written";
        RebuiltUnnamed, "8", "recovery gives a rebuilt file's records up before its name is synced";
        ChangeIgnored, "others", "recovery replays over a file that somebody changed since";
        CounterLow, "history 3", "the counter restarts below numbers that are in use";
        SelectiveDrain, "3", "a segment is emptied by syncing its records, and freed, though older records of the file stay live";
        HintInPlace, "names", "a new name is written over the slot's newest one";
        AroundUnsettled, "5", "a call is made around the log while records are live";
        UnloggedIgnored, "9", "a sync is absorbed although the file changed in ways the log does not hold";
        SyncCoversLater, "9", "a sync counts for changes that were made after it";
        UnsyncedUnannounced, "9", "writes of files whose durability nobody asked for yet do not announce themselves";
        UnsyncedSizeForgotten, "9", "a file that is logged as a whole is not cut to its size";
        LostPagesHidden, "9", "the first sync of a file does not tell that the kernel lost pages of it before";
        UnsyncedForgotten, "9", "what a file held before its first sync counts as logged";
        EmptyUnlogged, "9", "an empty new file counts as logged at its first sync, without a record";
        ReserveLate, "history 13", "a writer waits for log space with the file announced and its pages locked";
        AnnouncedTooHigh, "2", "a writer announces a bound above the number it draws";
        ResizeLoggedLate, "7", "a truncation is logged after it was made";
        RecoverSizesLast, "7", "recovery makes all writes first and sets sizes last";
        DirectorySyncUncounted, "9 (names)", "a directory's sync is absorbed although it has changes that no slot holds";
        ReadsUnlocked, "behind", "a read in state Behind does not lock its pages";
        DrainStale, "behind", "a drain does not keep writers from the pages it writes: a stale one goes over a newer one";
        DrainSkipped, "2", "a sync does not drain page rows first";
        OldestSeqForgotten, "behind", "a row that older records have bytes in says the newest one's number";
        SlotGenerationUnchecked, "commit-points", "a write does not check that its slot is still the file's";
        CoveredInPart, "3", "a record counts as covered when newer ones cover its first byte on each page";
        CopyUnfenced, "3", "a segment is given back before the copies of its live records are fenced";
        CopyUnredirected, "behind", "page rows are not pointed to the copies of their records";
        SpillEntryEarly, "3 (spill)", "a frame's entry is persisted before the frame is durable";
        SpillFreedEarly, "3 (spill)", "a spilled segment is given back before its frame's entry is persisted";
        SpillFrameLive, "3 (spill)", "a frame is given back before its records have expired";
        SpillRowsStay, "3 (spill)", "page rows still point into a segment that was spilled and given back";
        SpillFailureForgotten, "4 (spill)", "a frame counts although another one's sync failed meanwhile";
        RecoverNoFrames, "3 (spill)", "recovery leaves the frames of the spill file out";
        RewriteNoFrames, "4 (spill)", "the rewrite after a failed sync leaves the frames of the spill file out";
        NotedOnce, "11", "a rename is noted before it is made, and not once more behind it";
        CursorOpen, "commit-points", "two writers make a file longer at once";
        SizeBelieved, "commit-points", "the size of a file counts whose writer died";
        NamelessKept, "names", "a file keeps its slot whose last name went by a removal that no slot holds";
        FrameEntryStays, "3 (spill)", "a frame is used again whose entry was not cleared";
        DirectorySyncBlank, "9 (names)", "a directory's sync is absorbed although a new file in it has no record";
    }
    real {
        LossIgnored, "damage", "recovery replays the rest of a file of which a record is damaged";
        PlaceUnchecked, "damage", "what was moved to another slot's or segment's place passes its checks";
        OwnPendingIgnored, "10", "on btrfs a record of a file does not wait for what is pending of that file";
        SynchronousUnsynced, "9", "a synchronous write does not end with a sync";
        DeadKeeperServed, "history 11", "a program does not hear that the keeper is dead, and goes on";
        RecoveryPutOff, "history 12", "the supervisor of a dead keeper leaves recovery to the next run";
        LinksUncounted, "names", "removing one of two names is taken for removing the last";
        DeathUnwatched, "history 22", "the keeper does not watch its clients' processes";
        PartedUnsettled, "5 (trust)", "a program that gives up rights leaves live records of the files that it goes on writing";
        SignalsAtOnce, "history 23", "signal handlers run in the middle of a write";
        RefusalIgnored, "history 24", "functions that cannot be patched do not keep a program's files from the log";
        AnyFileSystem, "history 25", "files of all file systems are managed";
        ReplayedWhileRunning, "recovery", "recovery replays over files although only processes died";
        AheadForgotten, "recovery", "a slot does not say that bytes of its file are in the log alone";
        RollbackUnseen, "recovery", "recovery does not see that a file system is older than it was";
        WitnessForgotten, "recovery", "no slot tells of a file system's newest state when its files are closed";
        NameLossIgnored, "10", "a file may lose the last name that its slot knows and keep others";
        VacancyBelieved, "recovery", "a new file that somebody removed after the crash is built anew";
        ParentUnchecked, "recovery", "a lost file is built in whatever directory stands at its path";
        PathBelieved, "recovery", "recovery believes every path that the kernel tells of a handle";
        RecordsCoarse, "recovery", "a record is as old as the clock's last tick, though the file was changed since";
        TimesOvertaken, "recovery", "times are set with an older stamp than the record before them has";
        TimesOfRecovery, "recovery", "a replayed file is as old as its recovery";
        LeftUntold, "recovery", "recovery does not know how a program's own call left a file in state Behind";
        PutBackBelieved, "recovery", "a file whose time of modification was put back counts as unchanged";
        AttributesAreBytes, "recovery", "a file of which only attributes changed counts as changed";
        ClockBelieved, "recovery", "recovery takes no notice of a clock that was set back";
        SupersededForgotten, "recovery", "old records are replayed over a later life of their file";
        SetAsideUnsaid, "recovery", "a program is started while files are set aside";
        DeathUnnoted, "10", "a process that dies in the midst of a change leaves nothing pending";
        OwnSyncUnmatched, "9 (ledger)", "a sync by the kernel is believed that found nothing to commit because of one of the keeper's";
        NamesUnlogged, "9 (ledger)", "on btrfs a name that changes behind a commit of the keeper's is left out of its log";
        MovesSplit, "9 (ledger)", "on btrfs the keeper syncs a directory and not what was moved into it";
        MadeUnannounced, "10", "what mkdir, symlink and mknod make is noted only when it is made";
        FixedManaged, "recovery", "files that nobody may write to in place are managed";
        AllMeant, "recovery", "a path that a person names means every file that had it";
        ObstaclesDecide, "recovery", "what kept recovery from a file once counts as a reason for a person to decide";
        LifeForgotten, "recovery", "a file that a recovery was kept from is judged by what recovery itself did since";
        TimesUndrained, "history 26", "times are set while bytes wait to be drained";
        SizeUntold, "history 26", "stat tells the page cache's size";
        TimesUntold, "history 26", "stat tells when the keeper brought the bytes";
        TimesKept, "history 26", "a drained file keeps the time of its drain";
        LinksFollowed, "history 27", "recovery follows symbolic links";
        IdentityUnchecked, "history 27", "recovery takes whatever stands at a name for the slot's file";
        SizeUnlooked, "9 (others)", "a sync is absorbed though somebody outside cut the file by its path";
        RemovalHeardAsCut, "others", "a file that a client removes while the keeper listens counts as one that an outsider cut";
        CutUnheard, "others", "the keeper does not hear of files that are cut by their paths";
        RemovalUnmarked, "others", "a file that somebody outside removed is built anew";
        MovesUncounted, "9 (others)", "what somebody outside did to a file's names does not make the next sync real";
        LinkedMovesUnheard, "9 (others)", "a move of a file that got its name by link is not noticed";
        DirectoryMovesUnheard, "9 (others)", "a move of a directory above a file is not noticed";
        RemovedParentsAwaited, "recovery", "a file whose directory was removed is put off, as if a mount were missing";
        MountedUuid, "recovery", "a btrfs is known by the UUID that it has while it is mounted beside a copy";
        ModesUncounted, "9 (others)", "a mode that somebody outside set does not make the next sync real";
        AttributesUnlooked, "9 (others)", "a sync is absorbed though somebody outside set the file's mode or owner just now";
        AttributesUnheard, "9 (others)", "attributes that somebody outside set do not make the next sync real";
        OthersUnasked, "9 (others)", "a sync with nothing new in its file does not ask for what others did";
        OutsidersUncounted, "9 (others)", "a sync is absorbed over what somebody outside does to a file that was let go to them";
        OpensUnasked, "others", "every open of a client's counts as the library's";
        GoTrusted, "others", "a Go program whose calls cannot be led to hooks counts as one whose calls are seen";
        GoChildrenLost, "interposition", "static Go programs that a client starts are executed without the library";
        GoThreadsMistaken, "interposition", "threads that Go makes are taken for libc's";
        GoFaultsTrusted, "interposition", "memory of a Go program's is read that cannot be read";
        FaultsBlocked, "history 23", "a look at memory that cannot be read ends the process where a signal was put off";
        HandlersAnywhere, "interposition", "handlers that were put off run on the stack of the thread";
        MountSyncAnswered, "9", "the server of a mount answers a sync by itself";
        MountOwnerKept, "interposition", "what is made below a mount belongs to the server";
        MountPrivilegesKept, "interposition", "writes below a mount leave setuid and setgid bits";
        GivenBackTwice, "12", "a round gives a slot back that another round has given back, and that has another file by now";
        DrainCommandIdle, "history 28", "the drain command answers without bringing anything to the files";
        AgeIgnored, "history 28", "bytes stay in the log for as long as there is room";
        PeerUnchecked, "trust", "the keeper takes clients of any user";
        KeeperBelieved, "trust", "clients and commands believe a keeper of any user";
        DescriptorUnchecked, "trust", "a client gets a file managed that it cannot write to";
        LaneBelieved, "trust", "a dead client's record is written to whatever file its lane names";
        RangesBelieved, "trust", "what clients say of ranges is used as it is";
        OthersHavePool, "trust", "a pool is served from that somebody else has open";
        SumsUnread, "trust", "bytes of the log go to files whatever became of them there";
        RowsBelieved, "trust", "a drain believes page rows, whatever was stored into them";
        LateAnswersTaken, "trust", "the late answer of a keeper that stood still is taken for that to the next question";
        StoppedWaitedFor, "trust", "an outsider's open waits for a process that is stopped, however long";
        StoppedNamesWaitedFor, "trust", "whoever needs a file waits for a process that is stopped in a change of it, however long";
        TakenReused, "12", "a slot goes to another file while a process that stood still may act on it by its last use";
        PoolShared, "trust", "a pool is opened that others may write to";
        RootStaysRoot, "trust", "root recovers another user's pool as root";
        VectorInPlace, "1", "the program's vector is read again for each purpose, instead of once";
        RoomUnchecked, "1", "the same, and a record may be longer than the segments that were reserved for it";
    }
}

/// Whether this build can have a bug. What ships asserts that it cannot.
pub const ARMED: bool = cfg!(feature = "armed");

/// The variable that names the bug of a program and its keeper. These bytes are in no program that
/// cannot have one, which a test of what ships looks for.
#[cfg(feature = "armed")]
pub const VARIABLE: &str = "HOLDFAST_CANARY";

/// Whether this bug is to show. Never, in every build but the simulator's own.
#[cfg(not(feature = "armed"))]
#[inline(always)]
pub const fn on(_: Canary) -> bool {
    false
}

/// Whether this bug is to show.
#[cfg(feature = "armed")]
#[inline]
pub fn on(canary: Canary) -> bool {
    CHOSEN.load(core::sync::atomic::Ordering::Relaxed) == canary as u32 + 1
}

#[cfg(feature = "armed")]
static CHOSEN: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Lets this bug show from now on, or none.
#[cfg(feature = "armed")]
pub fn arm(canary: Option<Canary>) {
    CHOSEN.store(canary.map_or(0, |canary| canary as u32 + 1), core::sync::atomic::Ordering::Relaxed);
}

/// Lets the bug with this name show, if it is one's name.
#[cfg(feature = "armed")]
pub fn arm_named(name: &[u8]) -> bool {
    let found = Canary::ALL.iter().find(|canary| canary.name().as_bytes() == name);
    arm(found.copied());
    found.is_some()
}

// A build without the feature knows at compile time that no bug is in it.
#[cfg(not(feature = "armed"))]
const _: () = {
    let mut index = 0;
    while index < Canary::ALL.len() {
        assert!(!on(Canary::ALL[index]));
        index += 1;
    }
};
