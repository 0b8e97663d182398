/** Numbers, times and lists as people say them. */

/** "1 picture", "12 pictures"; the plural is the singular with an s by default. */
export function count(n, one, many = `${one}s`) {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

/** "rose, tulip and 3 more": the first names. */
export function some(names, most = 4) {
  if (names.length <= most) return and(names);
  return `${names.slice(0, most).join(", ")} and ${names.length - most} more`;
}

function and(names) {
  if (names.length < 2) return names.join("");
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** A probability from 0 to 1: never 100%, since nothing is that sure. */
export function percent(probability) {
  const rounded = Math.round(probability * 100);
  if (rounded >= 100) return ">99%";
  return rounded < 1 ? "<1%" : `${rounded}%`;
}

/** The same in a sentence: "over 99% sure". */
export function sure(probability) {
  return `${percent(probability).replace(">", "over ").replace("<", "less than ")} sure`;
}

/** Seconds as "about 4 minutes". */
export function duration(seconds) {
  if (seconds < 10) return "a few seconds";
  if (seconds < 90) return `about ${Math.ceil(seconds / 10) * 10} seconds`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `about ${count(minutes, "minute")}`;
  return `about ${count(Math.round(minutes / 60), "hour")}`;
}

/** A time of the server (seconds since 1970) as "today, 14:05" or "3 March, 14:05". */
export function when(seconds) {
  const then = new Date(seconds * 1000);
  if (Number.isNaN(then.getTime())) return "";
  const time = then.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  const day = (value) => value.toDateString();
  if (day(then) === day(new Date())) return `today, ${time}`;
  if (day(then) === day(new Date(Date.now() - 864e5))) return `yesterday, ${time}`;
  const sameYear = then.getFullYear() === new Date().getFullYear();
  const options = { day: "numeric", month: "long", ...(sameYear ? {} : { year: "numeric" }) };
  return `${then.toLocaleDateString("en-GB", options)}, ${time}`;
}

/** 1500000 as "1.5 MB". */
export function size(bytes) {
  for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= factor) return `${(bytes / factor).toFixed(bytes < 10 * factor ? 1 : 0)} ${unit}`;
  }
  return count(bytes, "byte");
}
