// See private.h. Compiled once per instruction set.
#include "private.h"

#include <sys/uio.h>

#include "buckets.h"

namespace oxccl {
inline namespace OXCCL_ISA {

// Pieces of memory that one call of the system copies, at most.
constexpr uint32_t BATCH = 64;

// A stretch of the tile that lies in one piece in every operand's memory.
struct Piece {
  uint32_t bucket;
  uint64_t at, len_bytes;  // as the tile's positions
};

struct Batch {
  Piece pieces[BATCH];
  uint32_t count;
  uint64_t len_bytes;
};

// Goes through the pieces of a tile in order.
struct Pieces {
  const Machine& machine;
  const Workspace& workspace;
  uint64_t position, end;  // the tile
  uint64_t at;             // where the next piece begins, at the earliest
  uint32_t bucket;         // the next one, of a group

  // The next pieces, of so many bytes together at most.
  void next(Batch& batch, uint64_t most_bytes) {
    batch.count = 0;
    batch.len_bytes = 0;
    while (batch.count < BATCH && batch.len_bytes < most_bytes && at < end) {
      Piece piece = {0, at, end - at};
      if (machine.launch.segments != nullptr && !next_bucket(piece)) break;
      const uint64_t room = most_bytes - batch.len_bytes;
      if (piece.len_bytes > room) piece.len_bytes = room;
      at = piece.at + piece.len_bytes;
      batch.len_bytes += piece.len_bytes;
      batch.pieces[batch.count++] = piece;
    }
  }

  // What is left of the bucket at hand, with those that follow it in all memories, or of the one
  // behind it.
  bool next_bucket(Piece& piece) {
    const Launch& launch = machine.launch;
    for (; bucket < launch.segments_count && launch.segments[bucket].start < end; ++bucket) {
      const uint32_t last = last_joined(machine, workspace, bucket);
      const Segment& segment = launch.segments[bucket];
      const uint64_t last_end = launch.segments[last].start + launch.segments[last].len_bytes;
      const uint64_t from = segment.start < at ? at : segment.start;
      const uint64_t to = last_end < end ? last_end : end;
      if (from < to) {
        piece = {bucket, from, to - from};
        return true;
      }
    }
    at = end;
    return false;
  }
};

static bool is_private(const Workspace& workspace, uint32_t operand) {
  return workspace.operands[operand].flags & OPERAND_CMA;
}

// Where an operand has a piece: of private memory, in its process.
static uint8_t* place_of(const Machine& machine, const Workspace& workspace, uint32_t operand,
                         const Piece& piece, uint64_t position) {
  const View& view = workspace.views[operand];
  if (machine.launch.segments == nullptr) return view.data + (piece.at - position);
  const BucketTable& table = workspace.buckets.of[operand];
  if (!table.first) return view.data + (piece.at - position);
  const Segment& segment = machine.launch.segments[piece.bucket];
  return bucket_of(table, piece.bucket) + workspace.operands[operand].message * segment.len_bytes +
         (piece.at - segment.start);
}

// The vectors without what has been copied.
static void drop_front(iovec*& vectors, uint32_t& count, uint64_t done) {
  while (count > 0 && done >= vectors->iov_len) {
    done -= vectors->iov_len;
    ++vectors;
    --count;
  }
  if (count == 0) return;
  vectors->iov_base = static_cast<uint8_t*>(vectors->iov_base) + done;
  vectors->iov_len -= done;
}

// Copies `len_bytes` out of a peer's process.
static bool read(Machine& machine, const Operand& from, iovec* to, uint32_t to_count,
                 iovec* remote, uint32_t remote_count, uint64_t len_bytes) {
  const pid_t process = pid_t(window_of(machine, from).process);
  while (len_bytes > 0) {
    const ssize_t done = process_vm_readv(process, to, to_count, remote, remote_count, 0);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return machine.fail(OUTCOME_UNREADABLE, from.index, uint32_t(done < 0 ? errno : EFAULT));
    len_bytes -= uint64_t(done);
    drop_front(to, to_count, uint64_t(done));
    drop_front(remote, remote_count, uint64_t(done));
  }
  return true;
}

// The pieces of a source.
static void find(const Machine& machine, const Workspace& workspace, uint32_t operand,
                 const Batch& batch, uint64_t position, iovec* places) {
  for (uint32_t p = 0; p < batch.count; ++p)
    places[p] = {place_of(machine, workspace, operand, batch.pieces[p], position),
                 batch.pieces[p].len_bytes};
}

// Reads a batch of a copy to where its first destination has it, and copies it on.
static bool copy_batch(Machine& machine, const Workspace& workspace, const Batch& batch,
                       uint64_t position) {
  iovec remote[BATCH], places[BATCH], left[BATCH];
  find(machine, workspace, 0, batch, position, remote);
  find(machine, workspace, 1, batch, position, places);
  memcpy(left, places, batch.count * sizeof(iovec));
  if (!read(machine, workspace.operands[0], left, batch.count, remote, batch.count, batch.len_bytes))
    return false;
  for (uint32_t d = 1; d < workspace.move().destinations; ++d)
    for (uint32_t p = 0; p < batch.count; ++p)
      copy_bytes(place_of(machine, workspace, 1 + d, batch.pieces[p], position),
                 static_cast<const uint8_t*>(places[p].iov_base), places[p].iov_len);
  return true;
}

// Reads a batch of each private source into its share of the bounce, and moves it from there.
static bool reduce_batch(Machine& machine, const HostReducer& reducer, const Workspace& workspace,
                         const Batch& batch, uint64_t position, uint64_t share_bytes,
                         View* views) {
  const Move& whole = workspace.move();
  const uint32_t operands = whole.sources + whole.destinations;
  uint8_t* const bounce = machine.launch.bounce + machine.channel * BOUNCE_BYTES;
  uint8_t* share = bounce;
  for (uint32_t s = 0; s < whole.sources; ++s) {
    if (!is_private(workspace, s)) continue;
    iovec remote[BATCH], to = {share, batch.len_bytes};
    find(machine, workspace, s, batch, position, remote);
    if (!read(machine, workspace.operands[s], &to, 1, remote, batch.count, batch.len_bytes))
      return false;
    share += share_bytes;
  }
  uint64_t done = 0;
  for (uint32_t p = 0; p < batch.count; ++p) {
    const Piece& piece = batch.pieces[p];
    share = bounce + done;
    for (uint32_t o = 0; o < operands; ++o) {
      views[o].data = is_private(workspace, o) ? share : place_of(machine, workspace, o, piece, position);
      if (is_private(workspace, o)) share += share_bytes;
    }
    const Move move = {views,           whole.sources, whole.destinations,
                       piece.len_bytes, whole.scaling, whole.tree, 0};
    if (!reduce_copy(machine, move, reducer)) return false;
    done += piece.len_bytes;
  }
  return true;
}

bool move_private(Machine& machine, const HostReducer& reducer, uint64_t round_start,
                  Workspace& workspace) {
  const Move& move = workspace.move();
  const uint32_t operands = move.sources + move.destinations;
  uint32_t sources = 0;
  View views[MAX_OPERANDS];
  for (uint32_t o = 0; o < operands; ++o) {
    views[o] = workspace.views[o];
    if (is_private(workspace, o)) ++sources;
    // Messages with flags go as a whole.
    else if (!views[o].is_plain()) return machine.fail(OUTCOME_BAD_PROGRAM, workspace.operands[o].index, o);
  }
  const bool in_buckets = machine.launch.segments != nullptr;
  if (in_buckets) find_buckets(machine, workspace);
  const uint64_t position = memory_of(workspace)->offset_bytes + round_start;
  const uint32_t first = in_buckets ? find_segment(machine.launch, position) : 0;
  Pieces pieces = {machine, workspace, position, position + move.len_bytes, position, first};
  const bool scaled =
      move.scaling.divide || (move.scaling.premultiply && views[0].is_raw());
  const bool copies = move.sources == 1 && move.destinations > 0 && !scaled;
  // Whole lines; what is copied on is still in a cache then.
  const uint64_t share_bytes = BOUNCE_BYTES / sources / CACHE_LINE_BYTES * CACHE_LINE_BYTES;
  const uint64_t most_bytes = copies && move.destinations == 1 ? move.len_bytes : share_bytes;
  Batch batch;
  for (pieces.next(batch, most_bytes); batch.count > 0; pieces.next(batch, most_bytes)) {
    const bool done = copies ? copy_batch(machine, workspace, batch, position)
                             : reduce_batch(machine, reducer, workspace, batch, position, share_bytes, views);
    if (!done) return false;
  }
  return true;
}

}  // namespace OXCCL_ISA
}  // namespace oxccl
