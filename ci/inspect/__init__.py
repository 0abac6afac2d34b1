"""What a lowered program, a context binary, a library, an APK or an AAR contains, from its bytes,
and whether a runtime can load it; whether an Android app can run QNN.
"""
