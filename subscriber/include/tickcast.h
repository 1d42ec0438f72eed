/* tickcast: follow a market-data multicast. Made by cbindgen: change the sources, not this.
 *
 * Begin with tickcast_builder_new. Texts are UTF-8 and NUL-terminated; what a function is given it
 * copies. Functions that give a status give 0 or more for success and a TickcastStatus below 0 for
 * an error; those that give a handle give NULL; those that give a text write at most `size` bytes,
 * the NUL among them, and give the length it has in full. tickcast_last_error says what was wrong.
 *
 * A handle is used by one thread at a time, any thread: a second one, or a callback that calls its
 * own handle, gets TICKCAST_STATUS_BUSY and changes nothing. Monitors and directories can be used
 * by all threads at once. A handle that was freed, of another kind or none at all is told as such.
 */

#ifndef TICKCAST_H
#define TICKCAST_H

#include <stddef.h>
#include <stdint.h>

/*
 The interface of this header. Another number is another library file.
 */
#define TICKCAST_ABI_VERSION 1

/*
 `records` of a loss whose number of records nobody knows, and `messages` likewise.
 */
#define TICKCAST_UNKNOWN UINT64_MAX

/*
 In `state`: a publisher has welcomed us.
 */
#define TICKCAST_STATE_JOINED (1 << 0)

/*
 Likewise: the stream is followed live.
 */
#define TICKCAST_STATE_LIVE (1 << 1)

/*
 Likewise: the session has ended; nothing follows in this epoch.
 */
#define TICKCAST_STATE_ENDED (1 << 2)

/*
 Likewise: nothing is heard of the publisher by multicast.
 */
#define TICKCAST_STATE_STALE (1 << 3)

/*
 Likewise: the publisher counts as dead.
 */
#define TICKCAST_STATE_PUBLISHER_DEAD (1 << 4)

/*
 Likewise: the publisher goes on, but multicast does not reach us.
 */
#define TICKCAST_STATE_MULTICAST_LOST (1 << 5)

/*
 Likewise: the repair connection is established.
 */
#define TICKCAST_STATE_REPAIR_LINK_UP (1 << 6)

/*
 Likewise: line A is silent while the stream goes on elsewhere.
 */
#define TICKCAST_STATE_LINE_A_DOWN (1 << 7)

/*
 Likewise: line B is.
 */
#define TICKCAST_STATE_LINE_B_DOWN (1 << 8)

/*
 `via` of what came over the repair connection.
 */
#define TICKCAST_VIA_REPAIR 255

/*
 In `quality`: it was missing before it came.
 */
#define TICKCAST_QUALITY_REPAIRED 1

/*
 In `quality`: an earlier sequence had not been delivered when this was (mode ARRIVAL only).
 */
#define TICKCAST_QUALITY_OUT_OF_ORDER 2

/*
 In `quality`: something of this channel was lost since the application last saw it whole.
 */
#define TICKCAST_QUALITY_AFTER_LOSS 4

/*
 In what poll gives: there was something to do; poll again before waiting.
 */
#define TICKCAST_POLL_WORKED 1

/*
 In what poll gives: something keeps the subscriber from working as configured; ask what.
 */
#define TICKCAST_POLL_PROBLEM 2

/*
 `channel` of what has no number yet.
 */
#define TICKCAST_NO_CHANNEL UINT32_MAX

/*
 What a call came to, where that is not a number of its own.
 */
enum TickcastStatus
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     It was done.
     */
    TICKCAST_STATUS_OK = 0,
    /*
     An argument is null, no UTF-8, or out of range.
     */
    TICKCAST_STATUS_ARGUMENT = -1,
    /*
     Header and library do not fit: a struct has another size than the library's.
     */
    TICKCAST_STATUS_ABI = -2,
    /*
     That is no handle, or one of another kind.
     */
    TICKCAST_STATUS_HANDLE = -3,
    /*
     The handle was freed, or what it stood for is gone: left, built, split, joined or ended.
     */
    TICKCAST_STATUS_FREED = -4,
    /*
     Another thread uses the handle, or this is a callback of a call on it or of its thread.
     */
    TICKCAST_STATUS_BUSY = -5,
    /*
     The builder describes what can't be.
     */
    TICKCAST_STATUS_CONFIG = -6,
    /*
     No such channel, symbol, counter or number.
     */
    TICKCAST_STATUS_UNKNOWN = -7,
    /*
     The operating system refused.
     */
    TICKCAST_STATUS_SYSTEM = -8,
    /*
     The library failed within: please report it. The handle can only be freed.
     */
    TICKCAST_STATUS_PANICKED = -9,
    /*
     The callback asked the call, or the thread of ours that it runs on, to end.
     */
    TICKCAST_STATUS_STOPPED = -10,
    /*
     The callback of an earlier call asked it to end: the handle hands over nothing any more.
     */
    TICKCAST_STATUS_POISONED = -11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastStatus TickcastStatus;
#else
typedef int32_t TickcastStatus;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What an item is.
 */
enum TickcastItemKind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     `record` is there.
     */
    TICKCAST_ITEM_KIND_RECORD = 1,
    /*
     `event` is there.
     */
    TICKCAST_ITEM_KIND_EVENT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastItemKind TickcastItemKind;
#else
typedef uint32_t TickcastItemKind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What happened. Those marked *in order* stand exactly where it happened.
 */
enum TickcastEventKind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     One that this header does not know.
     */
    TICKCAST_EVENT_KIND_OTHER = 0,
    /*
     The publisher welcomed us: delivery begins after `last` (in order).
     */
    TICKCAST_EVENT_KIND_JOINED = 1,
    /*
     Everything older has been delivered; from here on the stream is followed live (in order).
     */
    TICKCAST_EVENT_KIND_LIVE = 2,
    /*
     The `sequences` from `first` to `last` were missing and came after all, in `took_ns`.
     */
    TICKCAST_EVENT_KIND_GAP_RECOVERED = 3,
    /*
     The sequences from `first` to `last`, with so many `records`, will never be delivered;
     `cause` is a TickcastLossCause (in order).
     */
    TICKCAST_EVENT_KIND_LOST = 4,
    /*
     The publisher never had so many `messages` of `source` from `source_position` on, of these
     `instruments` or all; `cause` is a TickcastSourceLossReason (in order).
     */
    TICKCAST_EVENT_KIND_SOURCE_LOST = 5,
    /*
     Why this epoch was opened: `cause` is a TickcastEpochReason. The one before it is
     `from.epoch`, and ended with `last` (in order).
     */
    TICKCAST_EVENT_KIND_EPOCH_OPENED = 6,
    /*
     Another epoch, `to.epoch` after `from.epoch` (in order).
     */
    TICKCAST_EVENT_KIND_EPOCH_CHANGED = 7,
    /*
     Nothing was heard of the publisher for three of its announced intervals.
     */
    TICKCAST_EVENT_KIND_STALE = 8,
    /*
     It is heard again.
     */
    TICKCAST_EVENT_KIND_RECOVERED = 9,
    /*
     Nothing was heard of the publisher for so long that it counts as dead.
     */
    TICKCAST_EVENT_KIND_PUBLISHER_DEAD = 10,
    /*
     `line` went silent while the stream goes on elsewhere.
     */
    TICKCAST_EVENT_KIND_LINE_DOWN = 11,
    /*
     `line` is heard again.
     */
    TICKCAST_EVENT_KIND_LINE_UP = 12,
    /*
     The repair connection is established.
     */
    TICKCAST_EVENT_KIND_REPAIR_LINK_UP = 13,
    /*
     The repair connection is down and tried again; `cause` is a TickcastLinkDownReason.
     */
    TICKCAST_EVENT_KIND_REPAIR_LINK_DOWN = 14,
    /*
     Multicast does not reach us although the publisher goes on.
     */
    TICKCAST_EVENT_KIND_MULTICAST_LOST = 15,
    /*
     Multicast reaches us again.
     */
    TICKCAST_EVENT_KIND_MULTICAST_RESTORED = 16,
    /*
     The sequence `first` carried two different contents; see `wrong_one_delivered`.
     */
    TICKCAST_EVENT_KIND_FENCING_VIOLATION = 17,
    /*
     The publisher ended the session (in order).
     */
    TICKCAST_EVENT_KIND_END_OF_SESSION = 18,
    /*
     The application is so many `sequences` behind, more than its lag alarm.
     */
    TICKCAST_EVENT_KIND_LAGGING = 19,
    /*
     It is behind by no more than half of that again.
     */
    TICKCAST_EVENT_KIND_CAUGHT_UP = 20,
    /*
     This reader was too slow: so many `records` and `events` between `from` and `to` are gone
     for it, among them losses of `lost_records` and `losses_of_unknown_size`, `epoch_changes`,
     `source_losses` and `fencing_violations`. The channel stands as `state` says now, in
     epoch `to.epoch` (in order).
     */
    TICKCAST_EVENT_KIND_OVERRUN = 21,
    /*
     So many `records` were replaced by newer ones since this was told last (mode LATEST).
     */
    TICKCAST_EVENT_KIND_CONFLATED = 22,
    /*
     Reserved: what follows is a snapshot (in order).
     */
    TICKCAST_EVENT_KIND_SNAPSHOT_BEGIN = 23,
    /*
     Reserved: the snapshot is whole (in order).
     */
    TICKCAST_EVENT_KIND_SNAPSHOT_END = 24,
    /*
     The epoch `from.epoch` is continued by `to.epoch` behind the sequence `last`; so many
     `records` of those that follow had come already, and do not come again (in order).
     */
    TICKCAST_EVENT_KIND_EPOCH_CONTINUED = 25,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastEventKind TickcastEventKind;
#else
typedef uint32_t TickcastEventKind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why sequences were lost, in `cause`.
 */
enum TickcastLossCause
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     The publisher's ring no longer holds them.
     */
    TICKCAST_LOSS_CAUSE_WINDOW = 1,
    /*
     The delivery deadline passed.
     */
    TICKCAST_LOSS_CAUSE_DEADLINE = 2,
    /*
     The gap was over the burst limit, and catching up was not wanted or not possible.
     */
    TICKCAST_LOSS_CAUSE_BURST = 3,
    /*
     Their epoch is over.
     */
    TICKCAST_LOSS_CAUSE_EPOCH = 4,
    /*
     The publisher refused them for another reason, to the end.
     */
    TICKCAST_LOSS_CAUSE_REFUSED = 5,
    /*
     The publisher is gone, and its repair path with it.
     */
    TICKCAST_LOSS_CAUSE_PUBLISHER_DEAD = 6,
    /*
     Two publishers sent different content under these numbers.
     */
    TICKCAST_LOSS_CAUSE_FENCED = 7,
    /*
     Repair is switched off in this subscriber.
     */
    TICKCAST_LOSS_CAUSE_REPAIR_OFF = 8,
    /*
     The application left before they came.
     */
    TICKCAST_LOSS_CAUSE_LEFT = 9,
    /*
     The publisher sent what no version carries.
     */
    TICKCAST_LOSS_CAUSE_UNREADABLE = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastLossCause TickcastLossCause;
#else
typedef uint32_t TickcastLossCause;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why the publisher itself lost messages, in `cause`.
 */
enum TickcastSourceLossReason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     The venue's stream had a gap.
     */
    TICKCAST_SOURCE_LOSS_REASON_GAP = 1,
    /*
     The publisher could not keep up.
     */
    TICKCAST_SOURCE_LOSS_REASON_OVERFLOW = 2,
    /*
     Messages could not be read.
     */
    TICKCAST_SOURCE_LOSS_REASON_MALFORMED = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastSourceLossReason TickcastSourceLossReason;
#else
typedef uint32_t TickcastSourceLossReason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why an epoch was opened, in `cause`.
 */
enum TickcastEpochReason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     A first start.
     */
    TICKCAST_EPOCH_REASON_FRESH = 1,
    /*
     A restart that could not continue the ring, for a reason that this version does not know, or of a
     publisher that keeps none.
     */
    TICKCAST_EPOCH_REASON_RESTART = 2,
    /*
     A standby took over.
     */
    TICKCAST_EPOCH_REASON_PROMOTION = 3,
    /*
     A restart that found no ring.
     */
    TICKCAST_EPOCH_REASON_RING_GONE = 4,
    /*
     The host was started anew since.
     */
    TICKCAST_EPOCH_REASON_REBOOTED = 5,
    /*
     A restart with another shape of the ring, or other inputs.
     */
    TICKCAST_EPOCH_REASON_RECONFIGURED = 6,
    /*
     A restart with a live input, which does not tell again what it told meanwhile.
     */
    TICKCAST_EPOCH_REASON_LIVE_INPUT = 7,
    /*
     A restart that found a ring that is not whole.
     */
    TICKCAST_EPOCH_REASON_RING_DAMAGED = 8,
    /*
     The session of before was ended.
     */
    TICKCAST_EPOCH_REASON_SESSION_ENDED = 9,
    /*
     A restart whose state does not know the epoch of the ring.
     */
    TICKCAST_EPOCH_REASON_STATE_GONE = 10,
    /*
     A restart whose capture is no longer the file that it was.
     */
    TICKCAST_EPOCH_REASON_SOURCE_CHANGED = 11,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastEpochReason TickcastEpochReason;
#else
typedef uint32_t TickcastEpochReason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Why the repair connection is down, in `cause`.
 */
enum TickcastLinkDownReason
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     It could not be established.
     */
    TICKCAST_LINK_DOWN_REASON_UNREACHABLE = 1,
    /*
     The other side closed it, or the network did.
     */
    TICKCAST_LINK_DOWN_REASON_CLOSED = 2,
    /*
     Our NACKs stayed unanswered.
     */
    TICKCAST_LINK_DOWN_REASON_UNANSWERED = 3,
    /*
     The publisher rejected our JOIN.
     */
    TICKCAST_LINK_DOWN_REASON_REJECTED = 4,
    /*
     The other side broke the protocol.
     */
    TICKCAST_LINK_DOWN_REASON_PROTOCOL = 5,
    /*
     The other side offers an epoch that is over.
     */
    TICKCAST_LINK_DOWN_REASON_OLD_EPOCH = 6,
    /*
     We broke it off to begin a channel anew.
     */
    TICKCAST_LINK_DOWN_REASON_REJOINING = 7,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastLinkDownReason TickcastLinkDownReason;
#else
typedef uint32_t TickcastLinkDownReason;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 The types of records, in `rtype` of their header.
 */
enum TickcastRecordType
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint8_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     [`TradeMsg`].
     */
    TICKCAST_RECORD_TYPE_TRADE = 0,
    /*
     [`Mbp1Msg`].
     */
    TICKCAST_RECORD_TYPE_MBP1 = 1,
    /*
     [`StatusMsg`].
     */
    TICKCAST_RECORD_TYPE_STATUS = 18,
    /*
     [`InstrumentDefMsg`].
     */
    TICKCAST_RECORD_TYPE_INSTRUMENT_DEF = 19,
    /*
     [`ImbalanceMsg`].
     */
    TICKCAST_RECORD_TYPE_IMBALANCE = 20,
    /*
     [`SymbolMappingMsg`].
     */
    TICKCAST_RECORD_TYPE_SYMBOL_MAPPING = 22,
    /*
     [`StatMsg`].
     */
    TICKCAST_RECORD_TYPE_STATISTICS = 24,
    /*
     [`MboMsg`].
     */
    TICKCAST_RECORD_TYPE_MBO = 160,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastRecordType TickcastRecordType;
#else
typedef uint8_t TickcastRecordType;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 In which order to deliver, and how long to wait.
 */
enum TickcastDeliveryMode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     Strictly by sequence; a gap ends by repair or by the publisher's word. The default.
     */
    TICKCAST_DELIVERY_MODE_ORDERED = 0,
    /*
     Likewise, but a gap that is not repaired within `within_ns` is declared lost.
     */
    TICKCAST_DELIVERY_MODE_ORDERED_WITHIN = 1,
    /*
     At once, in the order of arrival; each datagram once.
     */
    TICKCAST_DELIVERY_MODE_ARRIVAL = 2,
    /*
     The newest quote, trade and status of each instrument that changed, and how many records
     each of them stands for.
     */
    TICKCAST_DELIVERY_MODE_LATEST = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastDeliveryMode TickcastDeliveryMode;
#else
typedef uint32_t TickcastDeliveryMode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 Where in the stream to begin.
 */
enum TickcastStartAt
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     With the first datagram sent after the publisher's welcome. The default.
     */
    TICKCAST_START_AT_LIVE = 0,
    /*
     With the oldest that the publisher's ring still holds.
     */
    TICKCAST_START_AT_OLDEST = 1,
    /*
     With the datagram `sequence` of `epoch`; what is gone of it is declared lost.
     */
    TICKCAST_START_AT_SEQUENCE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastStartAt TickcastStartAt;
#else
typedef uint32_t TickcastStartAt;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What a thread of ours does when there is nothing to do.
 */
enum TickcastIdleWith
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     Never gives up the core: lowest latency, for a core of its own.
     */
    TICKCAST_IDLE_WITH_SPIN = 0,
    /*
     Gives up the core when others wait for it.
     */
    TICKCAST_IDLE_WITH_YIELD = 1,
    /*
     Sleeps for `idle_us`: for hosts whose cores are shared.
     */
    TICKCAST_IDLE_WITH_SLEEP = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastIdleWith TickcastIdleWith;
#else
typedef uint32_t TickcastIdleWith;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 From where to where a latency is measured.
 */
enum TickcastLatencyStage
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     The exchange's event until the publisher received it.
     */
    TICKCAST_LATENCY_STAGE_EVENT_TO_RECEIVED = 0,
    /*
     Received by the publisher until sealed.
     */
    TICKCAST_LATENCY_STAGE_RECEIVED_TO_SEALED = 1,
    /*
     Sealed until handed to the callback.
     */
    TICKCAST_LATENCY_STAGE_SEALED_TO_DELIVERED = 2,
    /*
     Found missing until it came.
     */
    TICKCAST_LATENCY_STAGE_REPAIR = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastLatencyStage TickcastLatencyStage;
#else
typedef uint32_t TickcastLatencyStage;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 How grave a log line is.
 */
enum TickcastLogLevel
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /*
     Something failed that needs a person.
     */
    TICKCAST_LOG_LEVEL_ERROR = 1,
    /*
     Something is wrong that the library works around.
     */
    TICKCAST_LOG_LEVEL_WARN = 2,
    /*
     A state changed: connections, transports, lines.
     */
    TICKCAST_LOG_LEVEL_INFO = 3,
    /*
     Details of decisions.
     */
    TICKCAST_LOG_LEVEL_DEBUG = 4,
    /*
     Everything.
     */
    TICKCAST_LOG_LEVEL_TRACE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum TickcastLogLevel TickcastLogLevel;
#else
typedef uint32_t TickcastLogLevel;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 A subscriber being described.
 */
typedef struct TickcastBuilder TickcastBuilder;

/*
 What was known of symbols and ids. It can be used by all threads at once.
 */
typedef struct TickcastDirectory TickcastDirectory;

/*
 Watches a subscriber. It can be used by all threads at once.
 */
typedef struct TickcastMonitor TickcastMonitor;

/*
 Reads what a split subscriber receives.
 */
typedef struct TickcastReader TickcastReader;

/*
 A subscriber on a thread of its own.
 */
typedef struct TickcastRunning TickcastRunning;

/*
 Follows channels of a publisher.
 */
typedef struct TickcastSubscriber TickcastSubscriber;

/*
 The sizes of all structs, in bytes, as the compiler of the caller has them. tickcast_sizes()
 fills it.
 */
typedef struct {
    /*
     Of this struct.
     */
    uint32_t sizes;
    /*
     TICKCAST_ABI_VERSION.
     */
    uint32_t abi_version;
    /*
     Of TickcastItem.
     */
    uint32_t item;
    /*
     Of TickcastPosition.
     */
    uint32_t position;
    /*
     Of TickcastEvent.
     */
    uint32_t event;
    /*
     Of TickcastChannelReport.
     */
    uint32_t channel_report;
    /*
     Of TickcastReaderReport.
     */
    uint32_t reader_report;
    /*
     Of TickcastLatency.
     */
    uint32_t latency;
    /*
     Of TickcastSummary.
     */
    uint32_t summary;
    /*
     Of TickcastRecordHeader.
     */
    uint32_t record_header;
    /*
     Of TickcastMboMsg.
     */
    uint32_t mbo;
    /*
     Of TickcastTradeMsg.
     */
    uint32_t trade;
    /*
     Of TickcastMbp1Msg.
     */
    uint32_t mbp1;
    /*
     Of TickcastStatusMsg.
     */
    uint32_t status;
    /*
     Of TickcastInstrumentDefMsg.
     */
    uint32_t instrument_def;
    /*
     Of TickcastSymbolMappingMsg.
     */
    uint32_t symbol_mapping;
    /*
     Of TickcastImbalanceMsg.
     */
    uint32_t imbalance;
    /*
     Of TickcastStatMsg.
     */
    uint32_t stat;
} TickcastSizes;

/*
 A place in the stream of a channel.
 */
typedef struct {
    /*
     The publisher's incarnation.
     */
    uint64_t epoch;
    /*
     The datagram.
     */
    uint64_t sequence;
    /*
     The number of a record.
     */
    uint64_t record;
} TickcastPlace;

/*
 Something that happened to the stream. Which fields a kind uses stands at TickcastEventKind;
 the others are 0. `instruments` is valid within the callback, the rest can be copied.
 */
typedef struct {
    /*
     A TickcastEventKind.
     */
    uint32_t kind;
    /*
     Why, by one of the enums that the kind names.
     */
    uint32_t cause;
    /*
     The first sequence concerned.
     */
    uint64_t first;
    /*
     The last sequence concerned.
     */
    uint64_t last;
    /*
     How many sequences.
     */
    uint64_t sequences;
    /*
     How many records; TICKCAST_UNKNOWN when nobody knows.
     */
    uint64_t records;
    /*
     From detection to the last one of a gap.
     */
    uint64_t took_ns;
    /*
     From where, or from which epoch.
     */
    TickcastPlace from;
    /*
     To where, or to which epoch.
     */
    TickcastPlace to;
    /*
     Messages that the publisher lost; TICKCAST_UNKNOWN when nobody knows.
     */
    uint64_t messages;
    /*
     Position of the first of them.
     */
    uint64_t source_position;
    /*
     Events that were overwritten.
     */
    uint64_t events;
    /*
     Records that losses among those declared lost.
     */
    uint64_t lost_records;
    /*
     How many of those did not know their number of records.
     */
    uint64_t losses_of_unknown_size;
    /*
     How often the epoch changed in what was overwritten.
     */
    uint64_t epoch_changes;
    /*
     How often the publisher told a loss of a source in it.
     */
    uint64_t source_losses;
    /*
     How often it told a fencing violation in it.
     */
    uint64_t fencing_violations;
    /*
     The instruments concerned; NULL means all of the source.
     */
    const uint32_t *instruments;
    /*
     How many those are.
     */
    uint32_t instrument_count;
    /*
     Whose messages.
     */
    uint16_t source;
    /*
     Line A is 0, B is 1.
     */
    uint8_t line;
    /*
     1 when the wrong content had been delivered already.
     */
    uint8_t wrong_one_delivered;
    /*
     Bits TICKCAST_STATE_...: how the channel stands now.
     */
    uint32_t state;
    /*
     Zero.
     */
    uint32_t reserved;
} TickcastEvent;

/*
 Given every log line: a TickcastLogLevel, the module that it comes from, and the line. The texts
 are valid within the call. Any thread of the library may call it, several at once. It must
 neither throw nor call the library.
 */
typedef void (*TickcastOnLog)(void *context, uint32_t level, const char *target, const char *line);

/*
 A channel's name, NUL-terminated.
 */
typedef char TickcastName[72];

/*
 One channel as it stands.
 */
typedef struct {
    /*
     As it was asked for.
     */
    TickcastName name;
    /*
     Its number; TICKCAST_NO_CHANNEL before the publisher's welcome.
     */
    uint32_t channel;
    /*
     1 when the end of its session was delivered.
     */
    uint32_t ended;
    /*
     The epoch followed.
     */
    uint64_t epoch;
    /*
     The last sequence delivered or declared lost.
     */
    uint64_t delivered;
    /*
     The highest sequence heard of.
     */
    uint64_t heard;
    /*
     Sequences from the last one delivered to the newest known to have been sent.
     */
    uint64_t lag;
    /*
     Records that the protocol delivered.
     */
    uint64_t delivered_records;
    /*
     Records declared lost, where their number is known.
     */
    uint64_t lost_records;
    /*
     Sequences found missing.
     */
    uint64_t missing_datagrams;
    /*
     Of those, sequences that came after all.
     */
    uint64_t missing_recovered;
    /*
     Of those, sequences declared lost.
     */
    uint64_t missing_lost;
    /*
     Of those, sequences still open.
     */
    uint64_t missing_open;
} TickcastChannelReport;

/*
 Given every counter: its name, what it counts, and its value. The texts are valid within the
 call. It must not throw.
 */
typedef void (*TickcastOnCounter)(void *context, const char *name, const char *help, uint64_t value);

/*
 A histogram in short, in nanoseconds.
 */
typedef struct {
    /*
     How many samples; the others are 0 when there is none.
     */
    uint64_t count;
    /*
     The shortest.
     */
    uint64_t min_ns;
    /*
     Half are no longer.
     */
    uint64_t p50_ns;
    /*
     90% are no longer.
     */
    uint64_t p90_ns;
    /*
     99% are no longer.
     */
    uint64_t p99_ns;
    /*
     99.9% are no longer.
     */
    uint64_t p999_ns;
    /*
     99.99% are no longer.
     */
    uint64_t p9999_ns;
    /*
     The longest.
     */
    uint64_t max_ns;
    /*
     The mean.
     */
    double mean_ns;
    /*
     Samples of all stages that clocks which agree don't make: negative ones, which count as zero, and
     ones of more than an hour, which are in no histogram. A capture that is replayed has stamps of its
     own day, and makes them too.
     */
    uint64_t clock_skewed;
} TickcastLatency;

/*
 What a subscriber leaves behind.
 */
typedef struct {
    /*
     Records that the protocol delivered, on all channels.
     */
    uint64_t delivered_records;
    /*
     Records declared lost, where their number is known.
     */
    uint64_t lost_records;
    /*
     Events handed over.
     */
    uint64_t events;
    /*
     1 when nothing was lost, neither on the way to us nor at the source.
     */
    uint32_t is_whole;
    /*
     How many channels there were.
     */
    uint32_t channels;
} TickcastSummary;

/*
 Where an item stands, and how it came here.
 */
typedef struct {
    /*
     The publisher's incarnation.
     */
    uint64_t epoch;
    /*
     The datagram. For an event that is no datagram: the last one delivered before it.
     */
    uint64_t sequence;
    /*
     Number of the record; for an event, of the next one to come.
     */
    uint64_t record;
    /*
     Position of the last complete source message in its datagram.
     */
    uint64_t source_position;
    /*
     When its datagram was sealed, UTC by the publisher's clock.
     */
    uint64_t sent_at_ns;
    /*
     When its datagram was received, monotonic.
     */
    uint64_t received_at_ns;
    /*
     How long it had been missing; 0 when it never was.
     */
    uint64_t missing_for_ns;
    /*
     How many older records this one stands for as well (mode LATEST only).
     */
    uint32_t conflated;
    /*
     Whose sequence space.
     */
    uint16_t channel;
    /*
     Whose message it is.
     */
    uint16_t source;
    /*
     The line it came on, 0 for A and 1 for B, or TICKCAST_VIA_REPAIR.
     */
    uint8_t via;
    /*
     What to know beside it: TICKCAST_QUALITY_ bits.
     */
    uint8_t quality;
    /*
     Zero.
     */
    uint8_t reserved[6];
} TickcastPosition;

/*
 What every record begins with.
 */
typedef struct {
    uint8_t length;
    uint8_t rtype;
    uint16_t publisher_id;
    uint32_t instrument_id;
    uint64_t ts_event;
} TickcastRecordHeader;

/*
 One thing handed to the application. It, and what it points to, is valid within the callback.
 */
typedef struct {
    /*
     A TickcastItemKind.
     */
    uint32_t kind;
    /*
     The record's size in bytes, 0 for an event.
     */
    uint32_t record_size;
    /*
     Where it stands.
     */
    const TickcastPosition *position;
    /*
     The record, by its `rtype` one of the Tickcast...Msg; NULL for an event.
     */
    const TickcastRecordHeader *record;
    /*
     The event; NULL for a record.
     */
    const TickcastEvent *event;
} TickcastItem;

/*
 Given every item, in order. 0 goes on; anything else ends the call that it comes from with
 TICKCAST_STATUS_STOPPED, and poisons the handle: the items that it was not given are gone, and
 every later call gets TICKCAST_STATUS_POISONED. It must not throw.

 ```c
 if (item->record && item->record->rtype == TICKCAST_RECORD_TYPE_TRADE) {
     const TickcastTradeMsg *trade = (const TickcastTradeMsg *)item->record;
     printf("%u: %lld\n", trade->hd.instrument_id, (long long)trade->price);
 }
 ```
 */
typedef int32_t (*TickcastOnItem)(void *context, const TickcastItem *item);

/*
 What a reader has made of one channel.
 */
typedef struct {
    /*
     As it was asked for.
     */
    TickcastName name;
    /*
     Its number; TICKCAST_NO_CHANNEL before the publisher's welcome.
     */
    uint32_t channel;
    /*
     Zero.
     */
    uint32_t reserved;
    /*
     Records that its callback was given.
     */
    uint64_t records;
    /*
     Events that it was given; those about the reader itself are not among them.
     */
    uint64_t events;
    /*
     Records that a newer one replaced (mode LATEST).
     */
    uint64_t conflated_records;
    /*
     Times that it was overrun.
     */
    uint64_t overruns;
    /*
     Records that were overwritten before it came to them.
     */
    uint64_t overrun_records;
    /*
     Events likewise.
     */
    uint64_t overrun_events;
    /*
     Sequences that the thread is ahead of it.
     */
    uint64_t lag;
} TickcastReaderReport;

/*
 An order, or a level of a book of prices (flag MBP, order id 0).
 */
typedef struct {
    TickcastRecordHeader hd;
    uint64_t order_id;
    int64_t price;
    uint32_t size;
    uint8_t flags;
    uint8_t channel_id;
    char action;
    char side;
    uint64_t ts_recv;
    int32_t ts_in_delta;
    uint32_t sequence;
} TickcastMboMsg;

/*
 A trade.
 */
typedef struct {
    TickcastRecordHeader hd;
    int64_t price;
    uint32_t size;
    char action;
    char side;
    uint8_t flags;
    uint8_t depth;
    uint64_t ts_recv;
    int32_t ts_in_delta;
    uint32_t sequence;
} TickcastTradeMsg;

/*
 A price level, both sides.
 */
typedef struct {
    int64_t bid_px;
    int64_t ask_px;
    uint32_t bid_sz;
    uint32_t ask_sz;
    uint32_t bid_ct;
    uint32_t ask_ct;
} TickcastBidAskPair;

/*
 The best bid and offer.
 */
typedef struct {
    TickcastRecordHeader hd;
    int64_t price;
    uint32_t size;
    char action;
    char side;
    uint8_t flags;
    uint8_t depth;
    uint64_t ts_recv;
    int32_t ts_in_delta;
    uint32_t sequence;
    TickcastBidAskPair levels[1];
} TickcastMbp1Msg;

/*
 A change of an instrument's trading status.
 */
typedef struct {
    TickcastRecordHeader hd;
    uint64_t ts_recv;
    uint16_t action;
    uint16_t reason;
    uint16_t trading_event;
    char is_trading;
    char is_quoting;
    char is_short_sell_restricted;
    uint8_t _reserved[7];
} TickcastStatusMsg;

/*
 The definition of an instrument.
 */
typedef struct {
    TickcastRecordHeader hd;
    uint64_t ts_recv;
    int64_t min_price_increment;
    int64_t display_factor;
    uint64_t expiration;
    uint64_t activation;
    int64_t high_limit_price;
    int64_t low_limit_price;
    int64_t max_price_variation;
    int64_t unit_of_measure_qty;
    int64_t min_price_increment_amount;
    int64_t price_ratio;
    int64_t strike_price;
    uint64_t raw_instrument_id;
    int64_t leg_price;
    int64_t leg_delta;
    int32_t inst_attrib_value;
    uint32_t underlying_id;
    int32_t market_depth_implied;
    int32_t market_depth;
    uint32_t market_segment_id;
    uint32_t max_trade_vol;
    int32_t min_lot_size;
    int32_t min_lot_size_block;
    int32_t min_lot_size_round_lot;
    uint32_t min_trade_vol;
    int32_t contract_multiplier;
    int32_t decay_quantity;
    int32_t original_contract_size;
    uint32_t leg_instrument_id;
    int32_t leg_ratio_price_numerator;
    int32_t leg_ratio_price_denominator;
    int32_t leg_ratio_qty_numerator;
    int32_t leg_ratio_qty_denominator;
    uint32_t leg_underlying_id;
    int16_t appl_id;
    uint16_t maturity_year;
    uint16_t decay_start_date;
    uint16_t channel_id;
    uint16_t leg_count;
    uint16_t leg_index;
    char currency[4];
    char settl_currency[4];
    char secsubtype[6];
    char raw_symbol[71];
    char group[21];
    char exchange[5];
    char asset[11];
    char cfi[7];
    char security_type[7];
    char unit_of_measure[31];
    char underlying[21];
    char strike_price_currency[4];
    char leg_raw_symbol[71];
    char instrument_class;
    char match_algorithm;
    uint8_t main_fraction;
    uint8_t price_display_format;
    uint8_t sub_fraction;
    uint8_t underlying_product;
    char security_update_action;
    uint8_t maturity_month;
    uint8_t maturity_day;
    uint8_t maturity_week;
    char user_defined_instrument;
    int8_t contract_multiplier_unit;
    int8_t flow_schedule_type;
    uint8_t tick_rule;
    char leg_instrument_class;
    char leg_side;
    uint8_t _reserved[17];
} TickcastInstrumentDefMsg;

/*
 An instrument id and its symbol.
 */
typedef struct {
    TickcastRecordHeader hd;
    uint8_t stype_in;
    char stype_in_symbol[71];
    uint8_t stype_out;
    char stype_out_symbol[71];
    uint64_t start_ts;
    uint64_t end_ts;
} TickcastSymbolMappingMsg;

/*
 An auction's imbalance.
 */
typedef struct {
    TickcastRecordHeader hd;
    uint64_t ts_recv;
    int64_t ref_price;
    uint64_t auction_time;
    int64_t cont_book_clr_price;
    int64_t auct_interest_clr_price;
    int64_t ssr_filling_price;
    int64_t ind_match_price;
    int64_t upper_collar;
    int64_t lower_collar;
    uint32_t paired_qty;
    uint32_t total_imbalance_qty;
    uint32_t market_imbalance_qty;
    uint32_t unpaired_qty;
    char auction_type;
    char side;
    uint8_t auction_status;
    uint8_t freeze_status;
    uint8_t num_extensions;
    char unpaired_side;
    char significant_imbalance;
    uint8_t _reserved[1];
} TickcastImbalanceMsg;

/*
 A statistic of the venue.
 */
typedef struct {
    TickcastRecordHeader hd;
    uint64_t ts_recv;
    uint64_t ts_ref;
    int64_t price;
    int64_t quantity;
    uint32_t sequence;
    int32_t ts_in_delta;
    uint16_t stat_type;
    uint16_t channel_id;
    uint8_t update_action;
    uint8_t stat_flags;
    uint8_t _reserved[18];
} TickcastStatMsg;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The library's version, as "0.1.0".
 */
const char *tickcast_version(void);

/*
 The library's TICKCAST_ABI_VERSION.
 */
uint32_t tickcast_abi_version(void);

/*
 Whether the caller's structs are the library's: 0, or TICKCAST_STATUS_ABI. tickcast_builder_new
 does this by itself.
 */
int32_t tickcast_abi_check(const TickcastSizes *sizes);

/*
 What tickcast_builder_new calls; for other languages than C, which fill the sizes themselves.

 # Safety
 `publishers` is NULL or a text.
 */
TickcastBuilder *tickcast_builder_new_checked(const char *publishers, const TickcastSizes *sizes);

/*
 The name in the publisher's logs and metrics.

 # Safety
 `name` is NULL or a text.
 */
int32_t tickcast_builder_name(TickcastBuilder *builder, const char *name);

/*
 Adds a channel, by name or number: live, ordered and of all instruments, until the functions
 tickcast_builder_channel_... say otherwise of the one added last.

 # Safety
 `channel` is NULL or a text.
 */
int32_t tickcast_builder_channel(TickcastBuilder *builder, const char *channel);

/*
 Where to begin: a TickcastStartAt; epoch and sequence count for SEQUENCE only.
 */
int32_t tickcast_builder_channel_start(TickcastBuilder *builder,
                                       uint32_t at,
                                       uint64_t epoch,
                                       uint64_t sequence);

/*
 How long a silence of multicast is the event STALE, where that is longer than three of the
 publisher's announced intervals: 100 to 60,000,000; 30,000 where it is left out.
 */
int32_t tickcast_builder_channel_stale_us(TickcastBuilder *builder, uint32_t stale_us);

/*
 In which order: a TickcastDeliveryMode; `within_ns` counts for ORDERED_WITHIN only.
 */
int32_t tickcast_builder_channel_delivery(TickcastBuilder *builder,
                                          uint32_t mode,
                                          uint64_t within_ns);

/*
 Only these symbols' records, and those of the whole venue. One that is announced later counts
 from then on.

 # Safety
 `all` has `count` texts.
 */
int32_t tickcast_builder_channel_filter_symbols(TickcastBuilder *builder,
                                                const char *const *all,
                                                size_t count);

/*
 Only these instrument ids' records, and those of the whole venue.

 # Safety
 `all` has `count` ids.
 */
int32_t tickcast_builder_channel_filter_ids(TickcastBuilder *builder,
                                            const uint32_t *all,
                                            size_t count);

/*
 An event when the application is more than so many sequences behind.
 */
int32_t tickcast_builder_channel_lag_alarm(TickcastBuilder *builder, uint64_t sequences);

/*
 The interface of line A (first call) and B (second), by name or address; loopback otherwise.

 # Safety
 `interface` is NULL or a text.
 */
int32_t tickcast_builder_interface(TickcastBuilder *builder, const char *interface);

/*
 The socket buffer to ask for, per line and channel.
 */
int32_t tickcast_builder_receive_buffer(TickcastBuilder *builder, size_t bytes);

/*
 How datagrams come: `auto`, `udp` or `verbs`.

 # Safety
 `transport` is NULL or a text.
 */
int32_t tickcast_builder_transport(TickcastBuilder *builder, const char *transport);

/*
 When nobody has welcomed us for so long, that is a problem that poll tells; it is tried further.
 */
int32_t tickcast_builder_join_limit(TickcastBuilder *builder, uint64_t limit_ms);

/*
 Whether to keep latency histograms; 1 where it is left out.
 */
int32_t tickcast_builder_latency(TickcastBuilder *builder, int32_t on);

/*
 Drops this share (0 to 1) of datagrams at random, always the same for a seed: to see what an
 application does on a bad network.
 */
int32_t tickcast_builder_inject_loss(TickcastBuilder *builder, double share, uint64_t seed);

/*
 Builds the subscriber, and ends the builder, even where that fails. It connects with the first
 poll: either side may start first. Looking up the publisher's host may block.

 ```c
 TickcastBuilder *builder = tickcast_builder_new("127.0.0.1:7400");
 tickcast_builder_channel(builder, "all");
 tickcast_builder_channel_start(builder, TICKCAST_START_AT_OLDEST, 0, 0);
 TickcastSubscriber *subscriber = tickcast_builder_build(builder);
 if (!subscriber) puts(tickcast_last_error());
 ```
 */
TickcastSubscriber *tickcast_builder_build(TickcastBuilder *builder);

/*
 Ends a builder that nothing was built of. NULL is fine.
 */
int32_t tickcast_builder_free(TickcastBuilder *builder);

/*
 How many instruments it knows.
 */
int32_t tickcast_directory_len(const TickcastDirectory *directory);

/*
 The id of a symbol, as the venue spells it.

 # Safety
 `symbol` is NULL or a text.
 */
int32_t tickcast_directory_id(const TickcastDirectory *directory,
                              const char *symbol,
                              uint32_t *out);

/*
 The symbol of an id, valid as long as the directory; NULL when it is not known.
 */
const char *tickcast_directory_symbol(const TickcastDirectory *directory, uint32_t id);

/*
 Instrument `index` of all, in order of id: its symbol, valid as long as the directory, and its
 id. NULL beyond the last.
 */
const char *tickcast_directory_at(const TickcastDirectory *directory, size_t index, uint32_t *out);

/*
 Ends a directory, and the symbols that it gave. NULL is fine.
 */
int32_t tickcast_directory_free(TickcastDirectory *directory);

/*
 What was wrong with the last call of this thread that failed, in words, until the next one that
 fails. Empty when none has.
 */
const char *tickcast_last_error(void);

/*
 The TickcastStatus of that call: what a function that gives a handle can't say itself.
 */
int32_t tickcast_last_status(void);

/*
 An event in words, one line. The event may be a copy.

 # Safety
 `text` is NULL or has `size` bytes.
 */
int64_t tickcast_event_text(const TickcastEvent *event, char *text, size_t size);

/*
 Has `on` called with every log line up to this TickcastLogLevel, until the process ends. Without
 it the library logs nothing. TICKCAST_STATUS_BUSY when that was set already.

 ```c
 if (tickcast_set_log_callback(TICKCAST_LOG_LEVEL_INFO, on_log, NULL) < 0)
     puts(tickcast_last_error());
 ```

 # Safety
 `on` can be called with `context` by any thread until the process ends.
 */
int32_t tickcast_set_log_callback(uint32_t log_level, TickcastOnLog on, void *context);

/*
 Ends a monitor. NULL is fine.
 */
int32_t tickcast_monitor_free(TickcastMonitor *monitor);

/*
 Whether the publisher has welcomed us and the repair connection is up: 1 or 0.
 */
int32_t tickcast_monitor_is_joined(const TickcastMonitor *monitor);

/*
 Whether every channel has delivered the end of its session: 1 or 0.
 */
int32_t tickcast_monitor_ended(const TickcastMonitor *monitor);

/*
 What keeps the subscriber from working as configured, in words; length 0 when nothing does.

 # Safety
 `out` is NULL or has `size` bytes.
 */
int64_t tickcast_monitor_problem(const TickcastMonitor *monitor, char *out, size_t size);

/*
 How many channels there are.
 */
int32_t tickcast_monitor_channels(const TickcastMonitor *monitor);

/*
 Channel `index` as it stands, in the order they were asked for.
 */
int32_t tickcast_monitor_channel(const TickcastMonitor *monitor,
                                 size_t index,
                                 TickcastChannelReport *out,
                                 size_t size);

/*
 Calls `on` with every counter of channel `index`.

 # Safety
 `on` can be called with `context` until this returns.
 */
int32_t tickcast_monitor_counters(const TickcastMonitor *monitor,
                                  size_t index,
                                  TickcastOnCounter on,
                                  void *context);

/*
 One counter of channel `index` by its name.

 # Safety
 `name` is NULL or a text.
 */
int32_t tickcast_monitor_counter(const TickcastMonitor *monitor,
                                 size_t index,
                                 const char *name,
                                 uint64_t *out);

/*
 The histogram of a TickcastLatencyStage of channel `index`, in short. It is copied first: ask
 once a second, not once a tick.
 */
int32_t tickcast_monitor_latency(const TickcastMonitor *monitor,
                                 size_t index,
                                 uint32_t latency_stage,
                                 TickcastLatency *out,
                                 size_t size);

/*
 The value that this share (0 to 1) of a histogram's samples is not above, in nanoseconds.
 */
int32_t tickcast_monitor_quantile(const TickcastMonitor *monitor,
                                  size_t index,
                                  uint32_t latency_stage,
                                  double quantile,
                                  uint64_t *out);

/*
 Copies what is known of symbols and ids by now; nothing before the event JOINED.

 ```c
 TickcastDirectory *directory = tickcast_monitor_directory(monitor);
 const char *symbol = tickcast_directory_symbol(directory, item->record->instrument_id);
 puts(symbol ? symbol : "not announced");
 tickcast_directory_free(directory);
 ```
 */
TickcastDirectory *tickcast_monitor_directory(const TickcastMonitor *monitor);

/*
 As tickcast_subscriber_rejoin, done by the thread: waits until it was, a round of its loop and what its
 callback takes. A callback of the thread itself gets TICKCAST_STATUS_BUSY.

 Hold nothing meanwhile that the callback waits for: then neither gets on, until after 2 seconds
 the command is taken back, and this gives TICKCAST_STATUS_BUSY. It is so for the filters too.

 ```c
 TickcastReader *reader = NULL;
 TickcastRunning *running =
     tickcast_subscriber_split(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, 64 << 20, &reader);
 TickcastMonitor *monitor = tickcast_running_monitor(running);
 while (tickcast_monitor_is_joined(monitor) == 0 && tickcast_running_is_finished(running) == 0) {
     tickcast_reader_wait(reader, 100);
     tickcast_reader_poll(reader, on_item, context);
 }
 // From the beginning, and of one instrument.
 const char *wanted[] = {"AAPL"};
 if (tickcast_running_set_filter_symbols(running, 1, wanted, 1) < 0 ||
     tickcast_running_rejoin(running, 1, TICKCAST_START_AT_OLDEST, 0, 0) < 0)
     puts(tickcast_last_error());
 tickcast_monitor_free(monitor);
 ```
 */
int32_t tickcast_running_rejoin(TickcastRunning *running,
                                uint16_t channel,
                                uint32_t at,
                                uint64_t epoch,
                                uint64_t sequence);

/*
 As tickcast_subscriber_set_filter_all, done by the thread: from the next record that it takes on.
 */
int32_t tickcast_running_set_filter_all(TickcastRunning *running, uint16_t channel);

/*
 As tickcast_subscriber_set_filter_symbols, likewise.

 # Safety
 `all` has `count` texts.
 */
int32_t tickcast_running_set_filter_symbols(TickcastRunning *running,
                                            uint16_t channel,
                                            const char *const *all,
                                            size_t count);

/*
 As tickcast_subscriber_set_filter_ids, likewise.

 # Safety
 `all` has `count` ids.
 */
int32_t tickcast_running_set_filter_ids(TickcastRunning *running,
                                        uint16_t channel,
                                        const uint32_t *all,
                                        size_t count);

/*
 Watches a subscriber that runs on a thread of ours.
 */
TickcastMonitor *tickcast_running_monitor(TickcastRunning *running);

/*
 Asks the thread to leave, which it does within a round of its loop.
 */
int32_t tickcast_running_stop(TickcastRunning *running);

/*
 Whether the thread has ended: 1 or 0.
 */
int32_t tickcast_running_is_finished(TickcastRunning *running);

/*
 Waits until the thread has left, at the end of all sessions or once it was asked to stop, and
 ends the handle. `out` may be NULL. A callback of the thread itself gets TICKCAST_STATUS_BUSY,
 as does who comes while another thread uses the handle: it is not ended then.
 */
int32_t tickcast_running_join(TickcastRunning *running, TickcastSummary *out, size_t size);

/*
 Asks the thread to leave and does not wait for it: its callback may still be called. NULL is
 fine.
 */
int32_t tickcast_running_free(TickcastRunning *running);

/*
 Hands over what was received since, as tickcast_subscriber_poll does. Never blocks, and never delays the
 thread that receives.

 # Safety
 `on` can be called with `context` until this returns.
 */
int32_t tickcast_reader_poll(TickcastReader *reader,
                             TickcastOnItem on,
                             void *context);

/*
 Waits until there is something to read or the thread has left (1), at most for so long (0).
 */
int32_t tickcast_reader_wait(TickcastReader *reader, uint32_t timeout_ms);

/*
 Whether the thread has left and all that it delivered was read: 1 or 0.
 */
int32_t tickcast_reader_is_over(TickcastReader *reader);

/*
 Another reader, which begins where this one stands and goes its own way.
 */
TickcastReader *tickcast_reader_clone(TickcastReader *reader);

/*
 What this reader has made of channel `index`, in the order they were asked for.
 */
int32_t tickcast_reader_report(TickcastReader *reader,
                               size_t index,
                               TickcastReaderReport *out,
                               size_t size);

/*
 Watches the thread that a reader reads from.
 */
TickcastMonitor *tickcast_reader_monitor(TickcastReader *reader);

/*
 Ends a reader. NULL is fine.
 */
int32_t tickcast_reader_free(TickcastReader *reader);

/*
 Takes what has come, hands it to `on`, and asks for what is missing. Bounded, and never blocks.
 Gives TICKCAST_POLL_ bits, or a status below 0.

 ```c
 while (tickcast_subscriber_ended(subscriber) == 0 && tickcast_subscriber_wait(subscriber, 100) >= 0)
     if (tickcast_subscriber_poll(subscriber, on_item, context) < 0) puts(tickcast_last_error());
 ```

 # Safety
 `on` can be called with `context` until this returns.
 */
int32_t tickcast_subscriber_poll(TickcastSubscriber *subscriber,
                                 TickcastOnItem on,
                                 void *context);

/*
 Waits until there is something to do (1), at most for so long (0). Then poll, until there was
 nothing left to do.
 */
int32_t tickcast_subscriber_wait(TickcastSubscriber *subscriber, uint32_t timeout_ms);

/*
 A descriptor that becomes readable when there is something to do, for an epoll of your own. It
 stays the subscriber's: do not close it.
 */
int32_t tickcast_subscriber_fd(TickcastSubscriber *subscriber);

/*
 Whether every channel has delivered the end of its session: 1 or 0.
 */
int32_t tickcast_subscriber_ended(TickcastSubscriber *subscriber);

/*
 Whether the publisher has welcomed us: 1 or 0.
 */
int32_t tickcast_subscriber_is_joined(TickcastSubscriber *subscriber);

/*
 What keeps the subscriber from working as configured, in words; length 0 when nothing does.

 # Safety
 `out` is NULL or has `size` bytes.
 */
int64_t tickcast_subscriber_problem(TickcastSubscriber *subscriber, char *out, size_t size);

/*
 The number of a channel by the name it was asked for, from its event JOINED on.

 # Safety
 `name` is NULL or a text.
 */
int32_t tickcast_subscriber_channel_id(TickcastSubscriber *subscriber, const char *name);

/*
 Begins a channel anew; `at` is a TickcastStartAt. What is open of it is declared lost.
 */
int32_t tickcast_subscriber_rejoin(TickcastSubscriber *subscriber,
                                   uint16_t channel,
                                   uint32_t at,
                                   uint64_t epoch,
                                   uint64_t sequence);

/*
 From the next record on, all instruments.
 */
int32_t tickcast_subscriber_set_filter_all(TickcastSubscriber *subscriber, uint16_t channel);

/*
 From the next record on, only these symbols, which the publisher must have announced.

 # Safety
 `all` has `count` texts.
 */
int32_t tickcast_subscriber_set_filter_symbols(TickcastSubscriber *subscriber,
                                               uint16_t channel,
                                               const char *const *all,
                                               size_t count);

/*
 From the next record on, only these instrument ids.

 # Safety
 `all` has `count` ids.
 */
int32_t tickcast_subscriber_set_filter_ids(TickcastSubscriber *subscriber,
                                           uint16_t channel,
                                           const uint32_t *all,
                                           size_t count);

/*
 Watches a subscriber that is polled.

 ```c
 TickcastMonitor *monitor = tickcast_subscriber_monitor(subscriber);
 TickcastChannelReport report;
 if (tickcast_monitor_channel(monitor, 0, &report, sizeof report) == 0)
     printf("%s: %llu behind\n", report.name, (unsigned long long)report.lag);
 tickcast_monitor_free(monitor);
 ```
 */
TickcastMonitor *tickcast_subscriber_monitor(TickcastSubscriber *subscriber);

/*
 Polls on a thread pinned to `core` until all channels have ended, or tickcast_running_stop.
 `idle` is a TickcastIdleWith. Ends the subscriber handle, even where that fails. A callback that
 gives anything but 0 ends the thread without a word to the publisher.

 ```c
 TickcastRunning *running =
     tickcast_subscriber_run_pinned(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, on_item, context);
 if (!running || tickcast_running_join(running, NULL, sizeof(TickcastSummary)) < 0)
     puts(tickcast_last_error());
 ```

 # Safety
 `on` can be called with `context` from another thread, until tickcast_running_join.
 */
TickcastRunning *tickcast_subscriber_run_pinned(TickcastSubscriber *subscriber,
                                                uint32_t core,
                                                uint32_t idle_with,
                                                uint32_t idle_us,
                                                TickcastOnItem on,
                                                void *context);

/*
 Receives and repairs on a thread pinned to `core` into a local ring of at least `size_bytes`
 (1 MiB to 64 GiB), from which `reader` reads at its own speed. Ends the subscriber handle, even
 where that fails.

 ```c
 TickcastReader *reader = NULL;
 TickcastRunning *running =
     tickcast_subscriber_split(subscriber, 2, TICKCAST_IDLE_WITH_SPIN, 0, 64 << 20, &reader);
 while (running && tickcast_reader_is_over(reader) == 0) {
     tickcast_reader_wait(reader, 100);
     tickcast_reader_poll(reader, on_item, context);
 }
 tickcast_reader_free(reader);
 tickcast_running_join(running, NULL, sizeof(TickcastSummary));
 ```
 */
TickcastRunning *tickcast_subscriber_split(TickcastSubscriber *subscriber,
                                           uint32_t core,
                                           uint32_t idle_with,
                                           uint32_t idle_us,
                                           size_t size_bytes,
                                           TickcastReader **reader);

/*
 Says good-bye to the publisher, and ends the subscriber. What is still open is declared lost
 through `on`, which may be NULL; so may `out`, which is filled with what was delivered and lost.

 ```c
 TickcastSummary summary;
 if (tickcast_subscriber_leave(subscriber, on_item, context, &summary, sizeof summary) == 0)
     puts(summary.is_whole ? "whole" : "something was lost");
 ```

 # Safety
 `on` can be called with `context` until this returns.
 */
int32_t tickcast_subscriber_leave(TickcastSubscriber *subscriber,
                                  TickcastOnItem on,
                                  void *context,
                                  TickcastSummary *out,
                                  size_t size);

/*
 Ends a subscriber without a word to the publisher, which finds the connection closed. NULL is
 fine.
 */
int32_t tickcast_subscriber_free(TickcastSubscriber *subscriber);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TICKCAST_H */

/* What this header says of sizes, for the library to compare with its own. */
static inline TickcastSizes tickcast_sizes(void) {
    TickcastSizes sizes = {
        (uint32_t)sizeof(TickcastSizes), TICKCAST_ABI_VERSION,
        (uint32_t)sizeof(TickcastItem), (uint32_t)sizeof(TickcastPosition),
        (uint32_t)sizeof(TickcastEvent), (uint32_t)sizeof(TickcastChannelReport),
        (uint32_t)sizeof(TickcastReaderReport), (uint32_t)sizeof(TickcastLatency),
        (uint32_t)sizeof(TickcastSummary), (uint32_t)sizeof(TickcastRecordHeader),
        (uint32_t)sizeof(TickcastMboMsg), (uint32_t)sizeof(TickcastTradeMsg),
        (uint32_t)sizeof(TickcastMbp1Msg), (uint32_t)sizeof(TickcastStatusMsg),
        (uint32_t)sizeof(TickcastInstrumentDefMsg), (uint32_t)sizeof(TickcastSymbolMappingMsg),
        (uint32_t)sizeof(TickcastImbalanceMsg), (uint32_t)sizeof(TickcastStatMsg),
    };
    return sizes;
}

/* Describes a subscriber of one publisher, `host:port`, or of several, separated by commas. NULL
 * when this header and the library do not fit each other: tickcast_last_error says where. */
static inline TickcastBuilder *tickcast_builder_new(const char *publishers) {
    TickcastSizes sizes = tickcast_sizes();
    return tickcast_builder_new_checked(publishers, &sizes);
}
