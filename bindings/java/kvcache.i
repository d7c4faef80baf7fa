/*
 * kvcache.h for Java. Functions keep their C names; a failed call throws KvcacheException with status, detail and message;
 * out-parameters are arrays of one element; uint64_t is java.math.BigInteger.
 */
%module Kvcache

%include <typemaps.i>
/* Constants are int, as the functions and structs that take them. */
%include <enumsimple.swg>

%pragma(java) jniclasscode=%{
  static {
    String library = System.getenv("KVCACHE_LIB");
    try {
      if (library != null && !library.isEmpty()) System.load(new java.io.File(library).getAbsolutePath());
      System.loadLibrary("kvcache_java");
    } catch (UnsatisfiedLinkError error) {
      throw (UnsatisfiedLinkError) new UnsatisfiedLinkError(
          error.getMessage() + "; KVCACHE_LIB may hold the path of libkvcache.so, "
          + "-Djava.library.path the folder of libkvcache_java.so").initCause(error);
    }
  }
%}
%javaconst(1);
/* Written as C expressions, which Java does not read. */
%javaconst(0) DLPACK_FLAG_BITMASK_READ_ONLY;
%javaconst(0) DLPACK_FLAG_BITMASK_IS_COPIED;
%javaconst(0) DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
%ignore kvc_error; /* becomes an exception */

%{
#include <kvcache.h>
#include <string.h>

static void throw_kvcache_exception(JNIEnv *env, const kvc_error *err) {
  jclass type = (*env)->FindClass(env, "kvcache/KvcacheException");
  if (!type) return; /* Java has thrown already */
  jmethodID make = (*env)->GetMethodID(env, type, "<init>", "(ILjava/lang/String;JLjava/lang/String;)V");
  jstring name = make ? (*env)->NewStringUTF(env, kvc_status_name(err->status)) : NULL;
  jstring message = name ? (*env)->NewStringUTF(env, err->message) : NULL;
  if (!message) return;
  jobject thrown = (*env)->NewObject(env, type, make, (jint)err->status, name, (jlong)err->detail, message);
  if (thrown) (*env)->Throw(env, (jthrowable)thrown);
}
%}

/* The error is no argument in Java. It is untouched on success, so its status says whether the call failed. */
%typemap(in, numinputs=0) kvc_error *err (kvc_error error) {
  memset(&error, 0, sizeof error);
  error.struct_size = sizeof error;
  $1 = &error;
}
%typemap(argout) kvc_error *err {
  if ($1->status != KVC_OK) throw_kvcache_exception(jenv, $1);
}

/* A returned status has become an exception, so Java functions return nothing instead. */
%typemap(jni) kvc_status "void"
%typemap(jtype) kvc_status "void"
%typemap(jstype) kvc_status "void"
%typemap(out, null="") kvc_status "(void)$1;"
%typemap(javaout) kvc_status { $jnicall; }
%apply int { kvc_status status };

%apply int64_t *OUTPUT { int64_t *out_length, int64_t *out_pages, int64_t *out_tokens, int64_t *out_missing_pages,
                         int64_t *out_nearest, int64_t *out_freed };
%apply int32_t *OUTPUT { int32_t *out_done };
%apply uint64_t *OUTPUT { uint64_t *out_number };

%include "../swig/kvcache_common.i"
