/** Slots of a Redis Cluster. */

const SLOTS = 16384;
const POLYNOMIAL = 0x1021; // CRC-16/XMODEM

const TABLE = Uint16Array.from({ length: 256 }, (_, byte) => {
  let remainder = byte << 8;
  for (let bit = 0; bit < 8; bit++) {
    remainder = ((remainder << 1) ^ (remainder & 0x8000 ? POLYNOMIAL : 0)) & 0xffff;
  }
  return remainder;
});

/** The slot (0 to 16383) of a key: that of its hash tag, if it has one. */
export function slotOf(key: string): number {
  const tag = /^[^{]*\{([^}]+)\}/.exec(key)?.[1] ?? key;
  let remainder = 0;
  for (const byte of Buffer.from(tag)) {
    remainder = ((remainder << 8) ^ (TABLE[((remainder >> 8) ^ byte) & 0xff] ?? 0)) & 0xffff;
  }
  return remainder % SLOTS;
}
