/** The body, unless it is longer than `most` bytes. Then the rest is not read. */
export async function bytesOf(response: Response, most: number): Promise<Uint8Array<ArrayBuffer> | undefined> {
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  const reader = response.body?.getReader();
  for (let length = 0; reader; ) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    length += value.length;
    if (length > most) {
      // Of a clone it ends when the other half is read or cancelled.
      void reader.cancel().catch(() => undefined);
      return undefined;
    }
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

/** Whether there was no connection to write to. Only Node says so. */
export function isUnsent(error: unknown): boolean {
  return /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|UND_ERR_CONNECT_TIMEOUT)$/.test(whyOf(error));
}

/** Whether it is the other side's certificate: then nothing was sent to it. As Node, Bun and Deno say it. */
export function isUntrusted(error: unknown): boolean {
  return /^(CERT_|CRL_|ERROR_IN_C|ERR_TLS_CERT_|SELF_SIGNED_|DEPTH_ZERO_|UNABLE_TO_(GET|VERIFY|DE)|INVALID_(CA|PURPOSE)|PATH_LENGTH|HOSTNAME_MIS)|invalid peer certificate/.test(
    whyOf(error),
  );
}

/** Node has the code in the cause, Bun in the error; Deno has a text in the cause. */
function whyOf(error: unknown): string {
  const { cause, code } = Object(error) as { cause?: unknown; code?: unknown };
  const of = Object(cause) as { code?: unknown; message?: unknown };
  return String(of.code ?? code ?? of.message);
}
