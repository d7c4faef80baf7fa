package kvcache;

/** A call of the library that failed; nothing has changed then. */
public final class KvcacheException extends RuntimeException {
  private static final long serialVersionUID = 1;

  /** One of Kvcache.KVC_E_*. */
  public final int status;
  /** A number that belongs to the status: missing pages, offending id, needed bytes. */
  public final long detail;

  public KvcacheException(int status, String name, long detail, String message) {
    super(name + ": " + message);
    this.status = status;
    this.detail = detail;
  }
}
