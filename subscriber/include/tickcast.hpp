// tickcast for C++17: RAII over tickcast.h, header only.
//
// Handles are move-only and free themselves. A failed call throws tickcast::Error, except in the try_
// functions. A callback may throw: the exception propagates out of the poll that called it, and the
// polled object is poisoned. The remaining items are lost, and every later call throws an Error with
// TICKCAST_STATUS_POISONED.
#ifndef TICKCAST_HPP
#define TICKCAST_HPP

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "tickcast.h"

namespace tickcast {

using Position = TickcastPosition;
using Event = TickcastEvent;
using Summary = TickcastSummary;
using ChannelReport = TickcastChannelReport;
using ReaderReport = TickcastReaderReport;
using Latency = TickcastLatency;

// Records in the layout of DBN version 3.
using RecordHeader = TickcastRecordHeader;
using MboMsg = TickcastMboMsg;
using TradeMsg = TickcastTradeMsg;
using Mbp1Msg = TickcastMbp1Msg;
using StatusMsg = TickcastStatusMsg;
using InstrumentDefMsg = TickcastInstrumentDefMsg;
using SymbolMappingMsg = TickcastSymbolMappingMsg;
using ImbalanceMsg = TickcastImbalanceMsg;
using StatMsg = TickcastStatMsg;

// The rtype of a record type.
template <class Record> struct TypeOf;

#define TICKCAST_RECORD_(record, type, size)                                                       \
    template <> struct TypeOf<record> {                                                            \
        static constexpr std::uint8_t value = type;                                                \
    };                                                                                             \
    static_assert(sizeof(record) == size && alignof(record) == 8, "DBN version 3");
TICKCAST_RECORD_(MboMsg, 0xa0, 56)
TICKCAST_RECORD_(TradeMsg, 0x00, 48)
TICKCAST_RECORD_(Mbp1Msg, 0x01, 80)
TICKCAST_RECORD_(StatusMsg, 0x12, 40)
TICKCAST_RECORD_(InstrumentDefMsg, 0x13, 520)
TICKCAST_RECORD_(SymbolMappingMsg, 0x16, 176)
TICKCAST_RECORD_(ImbalanceMsg, 0x14, 112)
TICKCAST_RECORD_(StatMsg, 0x18, 80)
#undef TICKCAST_RECORD_
static_assert(sizeof(RecordHeader) == 16, "DBN version 3");

// The error of a failed call. Its text names the remedy.
class Error : public std::runtime_error {
public:
    Error(std::int32_t status, const char *text) : std::runtime_error(text), status_(status) {}
    static Error last() { return {tickcast_last_status(), tickcast_last_error()}; }
    // Returns a TickcastStatus.
    std::int32_t status() const noexcept { return status_; }

private:
    std::int32_t status_;
};

namespace detail {

template <class Number> Number checked(Number answer) {
    if (answer < 0) throw Error::last();
    return answer;
}

template <class T> T *given(T *handle) {
    if (!handle) throw Error::last();
    return handle;
}

template <class Handle, std::int32_t (*free)(Handle *)> struct Free {
    void operator()(Handle *handle) const noexcept { free(handle); }
};
template <class Handle, std::int32_t (*free)(Handle *)>
using Owned = std::unique_ptr<Handle, Free<Handle, free>>;

// Returns a text of unknown length from a function that writes texts.
template <class Write> std::string text(Write write) {
    std::string text(128, '\0');
    for (;;) {
        auto length = static_cast<std::size_t>(checked(write(&text[0], text.size())));
        bool fits = length < text.size();
        text.resize(fits ? length : length + 1);
        if (fits) return text;
    }
}

} // namespace detail

// Sets the callback for log lines up to this level, until the process ends. It receives the level, the
// module and the text. Any thread of the library may call it, and several may at once. It must not throw.
template <class On> void set_log_callback(TickcastLogLevel level, On on) {
    auto kept = std::make_unique<On>(std::move(on));
    auto line = [](void *context, std::uint32_t of, const char *target, const char *text) noexcept {
        std::invoke(*static_cast<On *>(context), static_cast<TickcastLogLevel>(of), target, text);
    };
    detail::checked(tickcast_set_log_callback(level, line, kept.get()));
    (void)kept.release();
}

inline std::string text_of(const Event &event) {
    return detail::text([&](char *out, std::size_t size) {
        return tickcast_event_text(&event, out, size);
    });
}

// A record or an event with its position. It is valid during the callback.
class Item {
public:
    explicit Item(const TickcastItem &raw) noexcept : raw_(raw) {}
    const Position &position() const noexcept { return *raw_.position; }
    // Returns the record, or null for an event.
    const RecordHeader *record() const noexcept { return raw_.record; }
    // Returns the event, or null for a record.
    const Event *event() const noexcept { return raw_.event; }
    // Returns the record if it is of this type, else null.
    template <class Record> const Record *as() const noexcept {
        bool is = raw_.record && raw_.record->rtype == TypeOf<Record>::value;
        return is ? reinterpret_cast<const Record *>(raw_.record) : nullptr;
    }
    // Returns the record's size in bytes, 0 for an event.
    std::size_t record_size() const noexcept { return raw_.record_size; }
    // Returns an event as text; empty for a record.
    std::string text() const { return raw_.event ? text_of(*raw_.event) : std::string(); }

private:
    const TickcastItem &raw_;
};

// The result of a poll.
class Polled {
public:
    explicit Polled(std::int32_t bits) noexcept : bits_(bits) {}
    // Returns whether there was something to do. If so, poll again before waiting.
    bool worked() const noexcept { return bits_ > 0 && (bits_ & TICKCAST_POLL_WORKED); }
    // Returns whether a problem keeps the subscriber from working as configured. See problem().
    bool problem() const noexcept { return bits_ > 0 && (bits_ & TICKCAST_POLL_PROBLEM); }
    // Returns the status of try_poll: a TickcastStatus below 0 on failure, else 0.
    std::int32_t status() const noexcept { return bits_ < 0 ? bits_ : 0; }

private:
    std::int32_t bits_;
};

namespace detail {

// The C callback of a callable that takes an Item. The callable returns void, or whether to continue.
template <class On> std::int32_t call(On &on, const TickcastItem *raw) {
    static_assert(std::is_invocable_v<On &, const Item &>, "a callback takes const Item &");
    Item item(*raw);
    if constexpr (std::is_void_v<std::invoke_result_t<On &, const Item &>>) {
        std::invoke(on, item);
        return 0;
    } else {
        return std::invoke(on, item) ? 0 : 1;
    }
}

template <class On> struct Catching {
    On &on;
    std::exception_ptr thrown = nullptr;

    static std::int32_t item(void *context, const TickcastItem *raw) noexcept {
        auto &self = *static_cast<Catching *>(context);
        if constexpr (std::is_nothrow_invocable_v<On &, const Item &>) {
            return call(self.on, raw);
        } else {
            try {
                return call(self.on, raw);
            } catch (...) {
                self.thrown = std::current_exception();
                return 1;
            }
        }
    }
};

template <class Handle, class Poll, class On> Polled poll(Handle *handle, Poll poll, On &on) {
    Catching<On> catching{on};
    std::int32_t bits = poll(handle, &Catching<On>::item, &catching);
    if (catching.thrown) std::rethrow_exception(catching.thrown);
    return Polled(checked(bits));
}

template <class Handle, class Poll, class On>
Polled try_poll(Handle *handle, Poll poll, On &on) noexcept {
    static_assert(std::is_nothrow_invocable_v<On &, const Item &>,
                  "the callback of try_poll is noexcept; poll takes others");
    Catching<On> catching{on};
    return Polled(poll(handle, &Catching<On>::item, &catching));
}

// The callback that runs on the current thread of the library.
inline const void *&calling() noexcept {
    static thread_local const void *callback = nullptr;
    return callback;
}

inline std::uint32_t millis(std::chrono::milliseconds span) {
    auto count = span.count();
    return count < 0 ? 0 : count > 0xffffffff ? 0xffffffff : static_cast<std::uint32_t>(count);
}

inline std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> all;
    for (const auto &text : texts) all.push_back(text.c_str());
    return all;
}

} // namespace detail

// Symbols and ids at the time of the copy. Callbacks and all threads may use it.
class Directory {
public:
    explicit Directory(TickcastDirectory *raw) : raw_(detail::given(raw)) {}
    std::size_t size() const {
        return static_cast<std::size_t>(detail::checked(tickcast_directory_len(raw_.get())));
    }
    std::optional<std::uint32_t> id(const std::string &symbol) const {
        std::uint32_t id = 0;
        auto status = tickcast_directory_id(raw_.get(), symbol.c_str(), &id);
        if (status == TICKCAST_STATUS_UNKNOWN) return std::nullopt;
        detail::checked(status);
        return id;
    }
    // Returns the symbol of an id, or null when it is not known. It is valid as long as the directory.
    const char *symbol(std::uint32_t id) const noexcept {
        return tickcast_directory_symbol(raw_.get(), id);
    }

private:
    detail::Owned<TickcastDirectory, tickcast_directory_free> raw_;
};

// Watches a subscriber. All threads may use it.
class Monitor {
public:
    explicit Monitor(TickcastMonitor *raw) : raw_(detail::given(raw)) {}
    bool is_joined() const { return detail::checked(tickcast_monitor_is_joined(raw_.get())) != 0; }
    bool ended() const { return detail::checked(tickcast_monitor_ended(raw_.get())) != 0; }
    // Returns the problem that keeps the subscriber from working as configured, or an empty text.
    std::string problem() const {
        return detail::text([&](char *out, std::size_t size) {
            return tickcast_monitor_problem(raw_.get(), out, size);
        });
    }
    // Returns all counters and latencies as text for Prometheus, or in OpenMetrics.
    std::string metrics_text(bool open_metrics = false) const {
        return detail::text([&](char *out, std::size_t size) {
            return tickcast_monitor_metrics_text(raw_.get(), open_metrics, out, size);
        });
    }
    // Returns the port at which the metrics are served; 0 without Builder::metrics_listen.
    std::uint16_t metrics_port() const {
        return static_cast<std::uint16_t>(detail::checked(tickcast_monitor_metrics_port(raw_.get())));
    }
    std::size_t channels() const {
        return static_cast<std::size_t>(detail::checked(tickcast_monitor_channels(raw_.get())));
    }
    ChannelReport channel(std::size_t index) const {
        ChannelReport out;
        detail::checked(tickcast_monitor_channel(raw_.get(), index, &out, sizeof out));
        return out;
    }
    std::uint64_t counter(std::size_t index, const char *name) const {
        std::uint64_t value = 0;
        detail::checked(tickcast_monitor_counter(raw_.get(), index, name, &value));
        return value;
    }
    Latency latency(std::size_t index, TickcastLatencyStage stage) const {
        Latency out;
        detail::checked(tickcast_monitor_latency(raw_.get(), index, stage, &out, sizeof out));
        return out;
    }
    // Returns the upper bound of this share (0 to 1) of a stage's samples, in nanoseconds.
    std::uint64_t quantile(std::size_t index, TickcastLatencyStage stage, double share) const {
        std::uint64_t value = 0;
        detail::checked(tickcast_monitor_quantile(raw_.get(), index, stage, share, &value));
        return value;
    }
    Directory directory() const { return Directory(tickcast_monitor_directory(raw_.get())); }

private:
    detail::Owned<TickcastMonitor, tickcast_monitor_free> raw_;
};

// Reads the items of a split subscriber at its own speed.
class Reader {
public:
    explicit Reader(TickcastReader *raw) : raw_(detail::given(raw)) {}
    template <class On> Polled poll(On &&on) {
        return detail::poll(raw_.get(), tickcast_reader_poll, on);
    }
    template <class On> Polled try_poll(On &&on) noexcept {
        return detail::try_poll(raw_.get(), tickcast_reader_poll, on);
    }
    // Waits until there is something to read or the thread has left. Returns whether that happened.
    bool wait(std::chrono::milliseconds timeout) {
        return detail::checked(tickcast_reader_wait(raw_.get(), detail::millis(timeout))) != 0;
    }
    bool is_over() const { return detail::checked(tickcast_reader_is_over(raw_.get())) != 0; }
    // Returns another reader, which starts at this reader's place.
    Reader clone() const { return Reader(tickcast_reader_clone(raw_.get())); }
    ReaderReport report(std::size_t index) const {
        ReaderReport out;
        detail::checked(tickcast_reader_report(raw_.get(), index, &out, sizeof out));
        return out;
    }
    Monitor monitor() const { return Monitor(tickcast_reader_monitor(raw_.get())); }

private:
    detail::Owned<TickcastReader, tickcast_reader_free> raw_;
};

// A subscriber on its own thread. The destructor asks the thread to leave and waits for it, so the
// callback is not called afterwards. A destructor that runs inside the thread's own callback can't
// wait: it detaches the thread and never frees the callback.
class Running {
public:
    explicit Running(TickcastRunning *raw, std::shared_ptr<void> callback = nullptr)
        : callback_(std::move(callback)), raw_(detail::given(raw)) {}
    Running(Running &&) noexcept = default;
    Running &operator=(Running &&other) noexcept {
        end();
        raw_ = std::move(other.raw_);
        callback_ = std::move(other.callback_);
        return *this;
    }
    ~Running() { end(); }
    void stop() { detail::checked(tickcast_running_stop(raw_.get())); }
    bool is_finished() const {
        return detail::checked(tickcast_running_is_finished(raw_.get())) != 0;
    }
    // Rejoins a channel as Subscriber::rejoin does, on the subscriber's thread, and waits for it.
    void rejoin(std::uint16_t channel, TickcastStartAt at, std::uint64_t epoch = 0,
                std::uint64_t sequence = 0) {
        detail::checked(tickcast_running_rejoin(raw_.get(), channel, at, epoch, sequence));
    }
    void pass_all(std::uint16_t channel) {
        detail::checked(tickcast_running_set_filter_all(raw_.get(), channel));
    }
    void pass_symbols(std::uint16_t channel, const std::vector<std::string> &symbols) {
        auto all = detail::pointers(symbols);
        detail::checked(
            tickcast_running_set_filter_symbols(raw_.get(), channel, all.data(), all.size()));
    }
    void pass_ids(std::uint16_t channel, const std::vector<std::uint32_t> &ids) {
        detail::checked(tickcast_running_set_filter_ids(raw_.get(), channel, ids.data(), ids.size()));
    }
    Summary join() {
        Summary out;
        auto status = tickcast_running_join(raw_.get(), &out, sizeof out);
        // A busy thread continues and calls its callback, so keep the handle.
        if (status != TICKCAST_STATUS_BUSY) (void)raw_.release();
        detail::checked(status);
        return out;
    }
    Monitor monitor() const { return Monitor(tickcast_running_monitor(raw_.get())); }

private:
    void end() noexcept {
        if (!raw_) return;
        bool is_own = callback_ && detail::calling() == callback_.get();
        // Another call uses the handle for at most 2 seconds, so retry until it ends.
        while (tickcast_running_stop(raw_.get()) == TICKCAST_STATUS_BUSY) std::this_thread::yield();
        if (is_own) {
            while (tickcast_running_free(raw_.get()) == TICKCAST_STATUS_BUSY)
                std::this_thread::yield();
            new std::shared_ptr<void>(std::move(callback_));
        } else {
            while (tickcast_running_join(raw_.get(), nullptr, sizeof(Summary)) ==
                   TICKCAST_STATUS_BUSY)
                std::this_thread::yield();
        }
        (void)raw_.release();
    }
    std::shared_ptr<void> callback_;
    detail::Owned<TickcastRunning, tickcast_running_free> raw_;
};

class Builder;

// Follows channels of a publisher. Only one thread at a time may use it.
class Subscriber {
public:
    explicit Subscriber(TickcastSubscriber *raw) : raw_(detail::given(raw)) {}
    // Creates a builder for publishers at `host:port`, separated by commas.
    static Builder builder(const std::string &publishers);

    // Receives datagrams and calls `on` with each Item. `on` returns void, or whether to continue.
    // A stop poisons this subscriber, as an exception does.
    template <class On> Polled poll(On &&on) { return detail::poll(raw_.get(), tickcast_subscriber_poll, on); }
    template <class On> Polled try_poll(On &&on) noexcept {
        return detail::try_poll(raw_.get(), tickcast_subscriber_poll, on);
    }
    // Waits until there is something to do. Returns whether that happened within `timeout`.
    bool wait(std::chrono::milliseconds timeout) {
        return detail::checked(tickcast_subscriber_wait(raw_.get(), detail::millis(timeout))) != 0;
    }
    // Returns a descriptor for your own epoll. The subscriber owns it.
    int fd() const { return detail::checked(tickcast_subscriber_fd(raw_.get())); }
    bool ended() const { return detail::checked(tickcast_subscriber_ended(raw_.get())) != 0; }
    bool is_joined() const { return detail::checked(tickcast_subscriber_is_joined(raw_.get())) != 0; }
    // Returns the problem that keeps the subscriber from working as configured, or an empty text.
    std::string problem() const {
        return detail::text([&](char *out, std::size_t size) {
            return tickcast_subscriber_problem(raw_.get(), out, size);
        });
    }
    std::uint16_t channel_id(const std::string &name) const {
        return static_cast<std::uint16_t>(
            detail::checked(tickcast_subscriber_channel_id(raw_.get(), name.c_str())));
    }
    void rejoin(std::uint16_t channel, TickcastStartAt at, std::uint64_t epoch = 0,
                std::uint64_t sequence = 0) {
        detail::checked(tickcast_subscriber_rejoin(raw_.get(), channel, at, epoch, sequence));
    }
    void pass_all(std::uint16_t channel) {
        detail::checked(tickcast_subscriber_set_filter_all(raw_.get(), channel));
    }
    void pass_symbols(std::uint16_t channel, const std::vector<std::string> &symbols) {
        auto all = detail::pointers(symbols);
        detail::checked(tickcast_subscriber_set_filter_symbols(raw_.get(), channel, all.data(), all.size()));
    }
    void pass_ids(std::uint16_t channel, const std::vector<std::uint32_t> &ids) {
        detail::checked(tickcast_subscriber_set_filter_ids(raw_.get(), channel, ids.data(), ids.size()));
    }
    Monitor monitor() const { return Monitor(tickcast_subscriber_monitor(raw_.get())); }
    Directory directory() const { return monitor().directory(); }

    // Polls on a thread pinned to `core`. `on` runs on that thread and must not throw, because an
    // exception ends the program. This subscriber is empty afterwards.
    template <class On>
    Running run_pinned(std::uint32_t core, On on, TickcastIdleWith idle = TICKCAST_IDLE_WITH_SPIN,
                       std::uint32_t idle_us = 0) {
        auto kept = std::make_shared<On>(std::move(on));
        auto item = [](void *context, const TickcastItem *raw) noexcept -> std::int32_t {
            detail::calling() = context;
            return detail::call(*static_cast<On *>(context), raw);
        };
        auto *raw = tickcast_subscriber_run_pinned(raw_.release(), core, idle, idle_us, item, kept.get());
        return Running(raw, kept);
    }
    // Receives on a thread pinned to `core`, into a local ring that readers read at their own speed.
    // This subscriber is empty afterwards.
    std::pair<Running, Reader> split(std::uint32_t core, std::size_t size_bytes,
                                     TickcastIdleWith idle = TICKCAST_IDLE_WITH_SPIN,
                                     std::uint32_t idle_us = 0) {
        TickcastReader *reader = nullptr;
        Running running(
            tickcast_subscriber_split(raw_.release(), core, idle, idle_us, size_bytes, &reader));
        return {std::move(running), Reader(reader)};
    }
    // Notifies the publisher and leaves. This subscriber is empty afterwards.
    Summary leave() {
        Summary out;
        detail::checked(tickcast_subscriber_leave(raw_.release(), nullptr, nullptr, &out, sizeof out));
        return out;
    }
    // Leaves, and passes the losses of open gaps to `on`. After `on` returns false or throws, it is not
    // called again. This subscriber is empty afterwards.
    template <class On> Summary leave(On &&on) {
        Summary out;
        detail::Catching<std::remove_reference_t<On>> catching{on};
        auto item = &decltype(catching)::item;
        auto status = tickcast_subscriber_leave(raw_.release(), item, &catching, &out, sizeof out);
        if (catching.thrown) std::rethrow_exception(catching.thrown);
        detail::checked(status);
        return out;
    }

private:
    detail::Owned<TickcastSubscriber, tickcast_subscriber_free> raw_;
};

// Describes a subscriber. The settings after channel() apply to the channel added last.
class Builder {
public:
    explicit Builder(const std::string &publishers)
        : raw_(detail::given(tickcast_builder_new(publishers.c_str()))) {}
    Builder &name(const std::string &name) {
        return set(tickcast_builder_name(raw_.get(), name.c_str()));
    }
    Builder &channel(const std::string &name) {
        return set(tickcast_builder_channel(raw_.get(), name.c_str()));
    }
    Builder &start(TickcastStartAt at, std::uint64_t epoch = 0, std::uint64_t sequence = 0) {
        return set(tickcast_builder_channel_start(raw_.get(), at, epoch, sequence));
    }
    Builder &delivery(TickcastDeliveryMode mode, std::chrono::nanoseconds within = {}) {
        auto within_ns = static_cast<std::uint64_t>(within.count());
        return set(tickcast_builder_channel_delivery(raw_.get(), mode, within_ns));
    }
    Builder &symbols(const std::vector<std::string> &symbols) {
        auto all = detail::pointers(symbols);
        return set(tickcast_builder_channel_filter_symbols(raw_.get(), all.data(), all.size()));
    }
    Builder &ids(const std::vector<std::uint32_t> &ids) {
        return set(tickcast_builder_channel_filter_ids(raw_.get(), ids.data(), ids.size()));
    }
    Builder &stale_us(std::uint32_t stale_us) {
        return set(tickcast_builder_channel_stale_us(raw_.get(), stale_us));
    }
    Builder &lag_alarm(std::uint64_t sequences) {
        return set(tickcast_builder_channel_lag_alarm(raw_.get(), sequences));
    }
    Builder &interface(const std::string &interface) {
        return set(tickcast_builder_interface(raw_.get(), interface.c_str()));
    }
    Builder &receive_buffer_bytes(std::size_t bytes) {
        return set(tickcast_builder_receive_buffer(raw_.get(), bytes));
    }
    Builder &busy_poll_us(std::uint32_t busy_poll_us) {
        return set(tickcast_builder_busy_poll(raw_.get(), busy_poll_us));
    }
    Builder &transport(const std::string &transport) {
        return set(tickcast_builder_transport(raw_.get(), transport.c_str()));
    }
    Builder &join_limit(std::chrono::milliseconds limit) {
        return set(tickcast_builder_join_limit(raw_.get(), detail::millis(limit)));
    }
    Builder &latency(bool on) { return set(tickcast_builder_latency(raw_.get(), on)); }
    Builder &latency_reports(bool on) { return set(tickcast_builder_latency_reports(raw_.get(), on)); }
    Builder &metrics_listen(const std::string &address) {
        return set(tickcast_builder_metrics_listen(raw_.get(), address.c_str()));
    }
    Builder &metrics_host(const std::string &name) {
        return set(tickcast_builder_metrics_host(raw_.get(), name.c_str()));
    }
    Builder &interval_log(const std::string &path, std::chrono::milliseconds interval) {
        return set(tickcast_builder_interval_log(raw_.get(), path.c_str(), detail::millis(interval)));
    }
#ifdef TICKCAST_TESTING
    Builder &drop(double share, std::uint64_t seed) {
        return set(tickcast_builder_inject_loss(raw_.get(), share, seed));
    }
#endif
    // Builds the subscriber. This builder is empty afterwards.
    Subscriber build() { return Subscriber(tickcast_builder_build(raw_.release())); }

private:
    Builder &set(std::int32_t status) {
        detail::checked(status);
        return *this;
    }
    detail::Owned<TickcastBuilder, tickcast_builder_free> raw_;
};

inline Builder Subscriber::builder(const std::string &publishers) { return Builder(publishers); }

} // namespace tickcast

#endif
