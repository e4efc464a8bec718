/**
 * Text counted in code points, as the wire counts it. JavaScript counts UTF-16 units, of which a character
 * beyond the basic plane takes two.
 */

export function countCodePoints(text: string): number {
  let count = text.length;
  for (let unit = 0; unit < text.length - 1; unit++) {
    if (isPair(text, unit)) {
      count--;
      unit++;
    }
  }
  return count;
}

/** `text` without its first `count` code points. */
export function afterCodePoints(text: string, count: number): string {
  let unit = 0;
  for (let left = count; left > 0 && unit < text.length; left--) unit += isPair(text, unit) ? 2 : 1;
  return text.slice(unit);
}

function isPair(text: string, unit: number): boolean {
  const first = text.charCodeAt(unit);
  if (first < 0xd800 || first > 0xdbff) return false;
  const second = text.charCodeAt(unit + 1);
  return second >= 0xdc00 && second <= 0xdfff;
}
