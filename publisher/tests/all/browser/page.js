// Checks the publisher's page in headless Chromium, with Playwright and axe-core (npm).
//
// node page.js http://HOST:PORT FOLDER
//
// Asks on standard output for a step of the publisher, and waits for a line on standard input once it is done.
// Writes screenshots to the folder.
const assert = require("assert");
const fs = require("fs");
const path = require("path");
const readline = require("readline");
const { chromium } = require("playwright-core");

const [base, folder] = process.argv.slice(2);
// It only turns a hang into a failure.
const PATIENCE = { timeout: 600_000 };
// Chromium reports these errors while nobody listens.
const AWAY = /ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE/;

const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function ask(step) {
  console.log(step);
  await lines.next();
}

const get = async (page) => (await fetch(base + page)).json();
const digits = (text) => Number(text.replace(/[^0-9.]/g, ""));

// Returns the cells of a table by column, row by row.
function table(page, id) {
  return page.evaluate((of) => {
    const text = (row) => [...row.cells].map((cell) => cell.textContent);
    const shown = document.getElementById(of);
    const names = text(shown.tHead.rows[0]);
    return [...shown.tBodies[0].rows].map((row) => Object.fromEntries(text(row).map((cell, at) => [names[at], cell])));
  }, id);
}

// Checks that the page shows the values of /status and /losses, which stand still. It may be one event behind.
async function agrees(page) {
  for (const until = Date.now() + PATIENCE.timeout; ; await page.waitForTimeout(100)) {
    try {
      return await compare(page);
    } catch (difference) {
      if (!(difference instanceof assert.AssertionError) || Date.now() > until) throw difference;
    }
  }
}

// Asserts that the page shows the present values of /status and /losses.
async function compare(page) {
  const status = await get("/status");
  const { losses } = await get("/losses");
  const sum = (of, ...keys) => keys.reduce((all, key) => all + of[key], 0);
  const name = (id) => status.channels.find((it) => it.id === id).name;
  const numbers = (row, expected) => {
    for (const [column, value] of Object.entries(expected)) assert.strictEqual(digits(row[column]), value, `${column} of ${JSON.stringify(row)}`);
  };
  assert.strictEqual(await page.textContent("h1"), status.name);
  assert.strictEqual(await page.textContent("#epoch"), String(status.epoch));
  assert.strictEqual(digits(await page.textContent("#totals dd")), status.published_records);

  const channels = await table(page, "channels");
  assert.strictEqual(channels.length, status.channels.length);
  status.channels.forEach((it, at) => {
    assert.strictEqual(channels[at].Channel, it.name);
    numbers(channels[at], {
      Number: it.id, Sealed: it.sealed, Records: it.published_records, NACKed: it.nacked, Pending: it.pending,
      Repaired: sum(it, "answered", "answered_by_multicast"), Skipped: it.skipped_datagrams,
      Refused: sum(it, "refused_window", "refused_ahead", "refused_budget", "refused_too_slow", "refused_epoch", "refused_malformed"),
    });
  });
  const out = await table(page, "out");
  const sent = status.channels.flatMap((it) => it.lines);
  assert.strictEqual(out.length, sent.length);
  const sources = await table(page, "sources");
  assert.strictEqual(sources.length, status.sources.length);
  status.sources.forEach((it, at) => numbers(sources[at], {
    Source: it.source, Messages: it.messages_total, Gaps: it.gaps, Missing: it.missing_messages, Overflow: it.overflow_messages,
  }));
  const subscribers = await table(page, "subscribers");
  assert.strictEqual(subscribers.length, status.subscribers.length);
  for (const it of status.subscribers) {
    const row = subscribers.find((row) => row.Subscriber === it.name && row.Channel === name(it.channel));
    assert(row, `${it.name} is not shown`);
    numbers(row, { Sequence: it.sequence, Lag: it.lag, "Records lost": it.lost_records });
    assert(row.State.includes(!it.joined ? "left" : it.follows ? "follows" : "joining"), row.State);
  }
  const shown = await table(page, "losses");
  assert.strictEqual(shown.length, Math.min(losses.length, 50));
  [...losses].reverse().slice(0, 50).forEach((it, at) => {
    const row = shown[at];
    assert.strictEqual(row.Subscriber, it.subscriber);
    assert.strictEqual(row.Outcome, it.outcome);
    assert(!it.refused || row.Cause.includes(it.refused.toLowerCase().replaceAll("_", " ")), row.Cause);
    assert.strictEqual(digits(row.Sequences.split("–")[0]), it.first);
    if (it.lost_records !== null) numbers(row, { "Records lost": it.lost_records });
  });
  return { status, losses };
}

// Checks what a keyboard and a screen reader need.
async function isAccessible(page) {
  await page.evaluate(fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8"));
  const { violations } = await page.evaluate(() => window.axe.run());
  assert.deepStrictEqual(violations.map((it) => `${it.id}: ${it.help}: ${it.nodes.map((node) => node.target + " " + node.failureSummary)}`), []);
  const wrong = await page.evaluate(() => {
    const all = (selector) => [...document.querySelectorAll(selector)];
    return {
      tables: all("table").filter((it) => !it.caption?.textContent || all(`#${it.id} th`).some((th) => !th.scope)).map((it) => it.id),
      live: all("[aria-live], [role=status], [role=alert]").filter((it) => !it.closest("#health")).length,
      images: all("svg").filter((it) => !it.getAttribute("aria-label")).length,
    };
  });
  assert.deepStrictEqual(wrong, { tables: [], live: 0, images: 0 });
}

// Checks that Tab reaches every control, and that the focus is visible.
async function isReachedByKeyboard(page) {
  const reached = new Set();
  await page.evaluate(() => document.activeElement.blur());
  for (let presses = 0; presses < 30; presses++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const it = document.activeElement, style = getComputedStyle(it);
      return [it.id || it.getAttribute("aria-label") || it.textContent, style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0];
    });
    if (at[0].length < 60) {
      assert(at[1], `the focus is invisible: ${at[0]}`);
      reached.add(at[0]);
    }
  }
  for (const wanted of ["To the content", "series", "filter", "Table of losses", "Table of subscribers", "/status"]) assert(reached.has(wanted), `${wanted} is not in ${[...reached]}`);
}

async function main() {
  const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
  const page = await browser.newPage({ viewport: { width: 1280, height: 900 } });
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && !AWAY.test(message.text()) && problems.push(message.text()));
  page.on("request", (request) => new URL(request.url()).origin !== base && !request.url().startsWith("data:") && problems.push(`it loads ${request.url()}`));
  const shoot = (name, options) => page.screenshot({ path: path.join(folder, name), fullPage: true, ...options });
  await page.goto(base + "/");

  // It is live: it shows by itself who joins, what is published, and each report of a loss.
  await page.waitForFunction(() => document.querySelector("#totals dd")?.textContent === "0", null, PATIENCE);
  await page.waitForFunction(() => document.querySelector("#verdict").textContent.includes("Ready"), null, PATIENCE);
  await ask("join");
  for (let lost = 1; lost <= 3; lost++) {
    await ask("lose");
    await page.waitForFunction((wanted) => document.querySelector("#subscribers tbody tr")?.lastChild.textContent === wanted, `▲ ${lost}`, PATIENCE);
  }

  // The input has ended, so the values stand still.
  const { published_records: records } = await get("/status");
  await page.waitForFunction((wanted) => Number(document.querySelector("#totals dd").textContent.replaceAll(",", "")) === wanted, records, PATIENCE);
  const caught = await get("/losses");
  await page.waitForFunction((wanted) => document.querySelectorAll("#losses tbody tr").length === wanted, Math.min(caught.losses.length, 50), PATIENCE);
  const { status, losses } = await agrees(page);
  assert(status.subscribers.length > 0 && losses.length > 0);
  // Names are text, whatever they contain.
  assert.strictEqual(await page.evaluate(() => document.querySelectorAll("main b, main img, main a").length), 0);
  assert((await page.textContent("#subscribers")).includes("<b>"));
  await page.waitForFunction(() => document.querySelectorAll("#heat .cell").length > 0, null, PATIENCE);
  assert(await page.evaluate(() => document.querySelectorAll("#line .mark").length > 0));

  // The filter and the choice of the heat map work without a mouse.
  await page.focus("#filter");
  await page.keyboard.type("no such name");
  await page.waitForFunction(() => document.querySelectorAll("#subscribers tbody tr").length === 0, null, PATIENCE);
  await page.fill("#filter", "");
  await page.waitForFunction((count) => document.querySelectorAll("#subscribers tbody tr").length === count, status.subscribers.length, PATIENCE);
  await page.selectOption("#series", "lag");
  assert((await page.getAttribute("#heat svg", "aria-label")).includes("lag of subscribers"));
  await isReachedByKeyboard(page);

  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await isAccessible(page);
    await shoot(`${colorScheme}.png`);
  }
  await page.setViewportSize({ width: 360, height: 740 });
  const width = await page.evaluate(() => document.documentElement.scrollWidth);
  assert(width <= 360, `a phone would scroll sideways: ${width}`);
  await isAccessible(page);
  await shoot("phone.png");
  await page.setViewportSize({ width: 1280, height: 900 });

  // It survives a restart, and says so.
  await ask("end");
  await page.waitForFunction(() => document.querySelector("#verdict").textContent.includes("Disconnected since"), null, PATIENCE);
  assert.strictEqual(await page.textContent("#epoch"), String(status.epoch), "it keeps the last values");
  await shoot("away.png");
  await ask("start");
  await page.waitForFunction((old) => document.querySelector("#epoch").textContent !== old, String(status.epoch), PATIENCE);
  await page.waitForFunction(() => document.querySelector("#verdict").textContent.includes("Ready"), null, PATIENCE);
  await page.waitForFunction(() => document.querySelector("#heat").textContent.includes("new epoch"), null, PATIENCE);
  const next = await get("/status");
  assert.strictEqual(await page.textContent("#epoch"), String(next.epoch));
  await ask("join");
  const again = await get("/status");
  await page.waitForFunction((wanted) => Number(document.querySelector("#totals dd").textContent.replaceAll(",", "")) === wanted, again.published_records, PATIENCE);
  await agrees(page);
  await shoot("restarted.png");
  assert.deepStrictEqual(problems, []);
  await browser.close();
  console.log("passed");
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
