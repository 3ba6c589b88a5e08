//! Room for an object in the zpools, within the limits of the store and of the pool that it is for.
//!
//! Guarantee: a store that fits waits for nothing here. What does not fit is shrunk for in the storing thread, if the
//! owner of the store wants that, or refused.

use super::{Store, StoreError};
use crate::objects::Room;
use crate::pools::PoolId;
use std::sync::atomic::Ordering::Relaxed;

impl Store {
    /// Room for so many bytes in the zpool that takes them. Shrinks if that is this thread's business.
    pub(super) fn room(&self, pool: PoolId, size: usize) -> Result<Room, StoreError> {
        let zpool = self.objects.zpool_for(size).ok_or(StoreError::Poor)?;
        if pool.is_limited() {
            self.keep_memlimit(pool, size as u64)?;
        }
        if let Some(room) = self.room_within_limit(zpool, size)? {
            return Ok(room);
        }
        while self.settle_for_room() {
            if let Some(room) = self.room_within_limit(zpool, size)? {
                return Ok(room);
            }
        }
        self.counters.pool_limit_hit.add(1);
        self.was_full.store(true, Relaxed);
        if !self.knobs.shrink_inline {
            return Err(StoreError::Full);
        }
        self.shrink();
        self.room_within_limit(zpool, size)?.ok_or(StoreError::Full)
    }

    /// The same, if it is to be had at once and without shrinking; its memory is asked for.
    pub(super) fn room_ahead(&self, size: usize) -> Option<Room> {
        let zpool = self.objects.zpool_for(size)?;
        let room = self.room_within_limit(zpool, size).ok().flatten()?;
        self.objects.zpools.get(zpool).prefetch(room.1, size);
        Some(room)
    }

    /// None if the pool would have to grow above its limit, or into what fresh pages need to be compressed.
    pub(super) fn room_within_limit(&self, zpool: usize, size: usize) -> Result<Option<Room>, StoreError> {
        let limit = self.knobs.max_pool_bytes.load(Relaxed).saturating_sub(self.kept_for_fresh());
        let room = self.objects.allocate(zpool, size, limit)?;
        if room.is_some() && self.was_full.load(Relaxed) && self.pool_bytes() > self.shrink_target() {
            self.counters.pool_limit_hit.add(1);
        }
        Ok(room)
    }
}
